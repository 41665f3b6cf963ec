"""Portable numerics: where they are refused, how they are held, and what a fingerprint tells."""

import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from conftest import DIGITS, ROOT, one_line
from torch.nn import functional

from doctor.inside import like
from host import limits, plan
from host.errors import HostError, LockstepError, UsageError
from train.config import Config
from train.learn import models
from train.numerics import convolutions, variables
from train.numerics.probes import fingerprint
from train.record import comparison

KNOBS = ["--max_steps", 3, "--eval.every", 3]
# What a shell has that knows nothing of portable numerics.
BARE = {name: value for name, value in os.environ.items() if name not in variables.HELD}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def taken() -> dict[str, str]:
    torch.set_num_threads(1)  # as a run has it, whichever tests came before
    return fingerprint(torch.device("cpu"), nullcontext, portable=True)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"reproducibility": "fast"}, "numerics: portable with reproducibility: fast"),
        ({"model": {"compile": True}}, "numerics: portable with model.compile"),
    ],
)
def test_an_experiment_that_cannot_be_portable(knobs, says) -> None:
    with pytest.raises(UsageError, match=says):
        Config(numerics="portable", **knobs)


@pytest.mark.parametrize(
    ("environ", "visible", "expected"),
    [
        ({}, 4, (1, "cpu", "no")),
        ({"CPUS": "2"}, 4, (2, "cpu", "no")),
        ({"GPUS": "0"}, 4, (1, "cpu", "no")),
        ({"ACCELERATE": "multi_cpu"}, 4, (2, "cpu", "no")),
        (
            {"GPUS": "4"},
            4,
            "GPUS=4 computes on GPUs → leave that out, or train with",
        ),
        ({"GPUS": "all"}, 1, "GPUS=all computes on GPUs"),
        ({"ACCELERATE": "gpu"}, 1, "ACCELERATE=gpu computes on GPUs"),
        ({"ACCELERATE": "bf16"}, 1, "ACCELERATE=bf16 computes on GPUs"),
        ({"PRECISION": "bf16"}, 0, "BF16 is asked for"),
        ({"CPUS": "2", "PRECISION": "bf16"}, 0, "BF16 is asked for"),
    ],
)
def test_a_plan_for_portable_numerics(environ, visible, expected) -> None:
    if isinstance(expected, str):
        with pytest.raises(UsageError) as raised:
            plan.make(environ, visible, 8, portable=True)
        assert expected in str(raised.value)
        return
    made = plan.make(environ, visible, 8, portable=True)
    assert (made.processes, made.device, made.precision) == expected


def test_a_variable_that_says_otherwise_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    with pytest.raises(UsageError, match=r"MKL_CBWR=AVX2 in the environment.*COMPATIBLE"):
        variables.hold()


def test_torch_that_looked_before_is_refused(monkeypatch) -> None:
    monkeypatch.delenv("MKL_CBWR")
    with pytest.raises(HostError, match="before Python starts: export ATEN_CPU_CAPABILITY=avx2"):
        variables.hold()


def test_a_cpu_without_avx2_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(variables, "possible", lambda: False)
    with pytest.raises(HostError, match="x86-64 CPU with AVX2 and FMA"):
        variables.hold()
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    with pytest.raises(LockstepError, match="x86-64 CPU with AVX2 and FMA"):
        _trained("portable")


def test_avx2_without_fma_does_not_do(tmp_path) -> None:
    """As on VIA's Eden X4 and Zhaoxin's ZX-C+."""
    file = tmp_path / "cpuinfo"
    for flags, possible in (("avx avx2 bmi1", False), ("fma avx avx2", True), ("fma avx", False)):
        file.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
        assert variables.possible(file) == possible


def test_what_the_libraries_took_is_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    with pytest.raises(HostError, match="torch or NumPy was loaded without the variables"):
        _trained("portable")


@pytest.mark.slow
def test_variables_that_are_set_after_a_computation_are_too_late() -> None:
    words = ["import os, torch", "(torch.ones(9, 9) @ torch.ones(9, 9)).exp()"]
    words += [f"os.environ.update({variables.HELD})", "from train.lanes import runtime"]
    words += ["from train.config import Config"]
    words += ["with runtime.start(Config(numerics='portable')): pass"]
    environ = {**BARE, "ATEN_CPU_CAPABILITY": "avx2"}  # so that this CPU's own does not tell
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(words)],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "torch or NumPy was loaded without the variables" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
    ],
)
def test_what_would_choose_otherwise_is_refused(name, value, monkeypatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    variables.hold()
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name} is set in the environment"):
        variables.hold()


def _trained(numerics: str) -> None:
    from train.lanes import runtime as runtimes

    with runtimes.start(Config(numerics=numerics)):
        pass


def test_a_fingerprint_is_the_same_twice_and_leaves_the_generators_alone() -> None:
    state = torch.get_rng_state()
    found = taken()
    assert len(found) >= 30
    assert not [name for name, digest in found.items() if digest.startswith("fails")]
    assert taken() == found
    assert torch.equal(state, torch.get_rng_state())


def test_what_a_run_records(cli, tmp_path) -> None:
    assert cli("fit", *DIGITS, *KNOBS, "--run", tmp_path / "r").code == 0
    record = json.loads((tmp_path / "r/run.json").read_text())
    assert record["numerics"] == "portable"
    assert record["optimizer_kernel"] == "torch's choice"
    assert record["fingerprint"] == taken()
    other = {**record, "fingerprint": {**record["fingerprint"], "linear": "0"}}
    said = "this machine computes otherwise: other bits in linear (of "
    assert comparison.differences(record, other)[0].startswith(said)
    # A run of before there were fingerprints says nothing of them.
    del other["fingerprint"]
    assert comparison.differences(record, other) == []


@pytest.mark.slow
def test_another_make_of_cpu_is_no_difference_where_it_makes_none(cli, tmp_path) -> None:
    for numerics, count in (("portable", 0), ("native", 1)):
        run = tmp_path / numerics
        assert cli("fit", *DIGITS, *KNOBS, "--numerics", numerics, "--run", run).code == 0
        record = json.loads((run / "run.json").read_text())
        other = {**record, "hardware": {**record["hardware"], "device": "another"}}
        assert len(comparison.differences(record, other)) == count


PROBE = """
import json, sys, torch
from contextlib import nullcontext
from train.numerics.probes import fingerprint
torch.set_num_threads(1)
json.dump(fingerprint(torch.device("cpu"), nullcontext), sys.stdout)
"""


@pytest.mark.slow
def test_probes_see_other_instructions() -> None:
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    words = [sys.executable, "-c", PROBE]
    done = subprocess.run(words, capture_output=True, env=environ, cwd=ROOT, check=True)
    plain, here = json.loads(done.stdout), taken()
    assert comparison.other_probes({"fingerprint": here}, {"fingerprint": plain})
    assert "sqrt" in plain
    assert "sqrt" not in here
    assert plain["randn"] != here["randn"]
    assert plain["linear"] == here["linear"]  # MKL's


WAYS = {
    "plain": [sys.executable, "-m", "train"],
    "launch": [sys.executable, "-m", "train.launch"],
    "accelerate": [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file",
        "configs/accelerate/cpu.yaml", "--quiet", "-m", "train",
    ],
    "torchrun": [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
        "-m", "--", "train",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_starting_holds_the_variables(way, cli, tmp_path) -> None:
    """As this process does, which had them from its start."""
    here, run = tmp_path / "here", tmp_path / "run"
    assert cli("fit", *DIGITS, *KNOBS, "--run", here).code == 0
    fit = ["fit", *DIGITS, *map(str, KNOBS)]
    for words in (fit, ["evaluate"]) if way in ("plain", "launch") else (fit,):
        done = subprocess.run(
            [*WAYS[way], *words, "--run", str(run)],
            capture_output=True, text=True, cwd=ROOT, env=BARE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    held = json.loads((run / "run.json").read_text())["environment"]
    assert variables.HELD.items() <= held.items()
    one, other = (json.loads((r / "result.json").read_text()) for r in (here, run))
    assert one["weights_sha256"] == other["weights_sha256"]


@pytest.mark.slow
def test_precision_and_variables_are_refused_in_one_line(tmp_path) -> None:
    words = ["fit", *DIGITS, "--run", tmp_path / "r"]
    half = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}
    for environ, said in (
        (half, "FP32 on the CPU, and BF16 is asked for"),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, "ATEN_CPU_CAPABILITY=avx512 in the environment"),
    ):
        done = subprocess.run(
            [*WAYS["plain"], *map(str, words)],
            capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environ}, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert said in one_line(done.stderr)
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_process_that_computes_otherwise_is_refused_by_operation(tmp_path) -> None:
    """Two processes as a launcher would start them; one's torch takes older instructions."""
    run, ended = tmp_path / "r", []
    words = [sys.executable, "-m", "train", "fit", *DIGITS, "--numerics", "native", "--run", run]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            words,
            env=BARE | place | own | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank, own in enumerate(({}, {"ATEN_CPU_CAPABILITY": "default"}))
    ]  # fmt: skip
    for process in started:
        _, said = process.communicate(timeout=120)
        ended.append((process.returncode, said))
    assert [code for code, _ in ended] == [6, 6], ended
    line = ended[0][1].splitlines()[-1]
    assert "process 1 does not compute as the others: cpu_capability is DEFAULT there" in line
    assert "other bits in attention, " in line
    assert not (run / "checkpoints").exists()


@pytest.mark.slow
def test_the_doctor_says_whether_a_run_can_be_had_here(finished, tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    record = json.loads((finished / "run.json").read_text())
    record["environment"] |= variables.STARTED  # it was trained in this process
    (other / "run.json").write_text(json.dumps(record))
    bits, others = like.examine(other)
    assert bits.status == "ok"
    assert "probes and the model's first pass give the bits of" in bits.seen
    assert others.status == "ok", others.seen
    # Shared out among so many processes, the CPUs leave each a thread: that it was trained with.
    shared = {**record, "reproducibility": "deterministic", "world_size": limits.cpus()}
    shared["config"] = {**record["config"], "reproducibility": "deterministic"}
    (other / "run.json").write_text(json.dumps(shared))
    bits, others = like.examine(other)
    assert (bits.status, others.status) == ("ok", "ok"), others.seen
    record["fingerprint"]["conv 1×1 backward"] = "0"
    record["first_pass"] = "0"
    record["versions"]["torch"] = "2.14.0"
    (other / "run.json").write_text(json.dumps(record))
    bits, others = like.examine(other)
    assert (bits.status, others.status) == ("fail", "warn")
    assert bits.seen.startswith("other bits in conv 1×1 backward (of ")
    assert bits.seen.endswith("; other bits in the model's first pass")
    assert "package torch: 2.14.0 recorded" in others.seen


def test_gpus_and_their_libraries_have_no_part_in_portable_numerics() -> None:
    one = {"versions": {"cudnn": "9", "torch": "2.15.0"}, "environment": {"CUDA_VERSION": "13.2"}}
    other = {"versions": {"torch": "2.15.0"}, "environment": {"OMP_DYNAMIC": "true"}}
    found = comparison.differences(
        {**one, "numerics": "portable"}, {**other, "numerics": "portable"}
    )
    assert found == ["variable OMP_DYNAMIC: none recorded, true now"]
    found = comparison.differences(one, other)
    assert [row.split(":")[0] for row in found] == [
        "package cudnn",
        "variable CUDA_VERSION",
        "variable OMP_DYNAMIC",
    ]


def test_the_doctor_has_nothing_to_compare_with(tmp_path) -> None:
    [found] = like.examine(tmp_path)
    assert (found.status, found.fix) == ("fail", "name a run directory")
    (tmp_path / "run.json").write_text("{}")
    [found] = like.examine(tmp_path)
    assert "has no fingerprint" in found.seen


class Rooted(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = torch.nn.Linear(64, 10), function

    def forward(self, x):
        return self.layer(self.function(x.flatten(1).abs() + 0.1).clamp(-9, 9))


def resampled(x: torch.Tensor) -> torch.Tensor:
    places = torch.zeros(len(x), 8, 8, 2)
    return functional.grid_sample(x.view(-1, 1, 8, 8), places, align_corners=True).flatten(1)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (torch.sqrt, "the model calls sqrt, which other makers' CPUs round otherwise"),
        (lambda x: x.sqrt(), "is to be the same on all (called in Rooted) → compute it"),
        (lambda x: x**0.5, "the model calls pow with an exponent of 0.5"),
        (lambda x: x.sqrt_(), "the model calls sqrt_, "),
        (torch.atan, "the model calls atan, "),
        (lambda x: torch.cdist(x, x).sum(1, keepdim=True) + x, "the model calls _cdist_forward, "),
        (lambda x: torch._foreach_sqrt([x])[0], "the model calls _foreach_sqrt, "),
        (torch.erf, None),
        (lambda x: 2 ** x.clamp(0, 1), None),
        (lambda x: x.bfloat16().relu().float(), "in bfloat16, which has not been compared"),
        (torch.rsqrt, None),
        (lambda x: x / x.std(1, keepdim=True) + torch.rand_like(x), None),
        (resampled, "the model calls grid_sampler_2d, which has not been compared"),
    ],
)
def test_operations_that_other_cpus_round_otherwise_are_refused(
    cli, tmp_path, monkeypatch, function, says
) -> None:
    monkeypatch.setitem(models.OURS, "rooted", lambda *_: Rooted(function))
    run = ["--run", tmp_path / "r"]
    done = cli("fit", *DIGITS, *KNOBS, "--model.name", "rooted", "--max_steps", 1, *run)
    if says is None:
        assert done.code == 0, done.err
        return
    assert done.code == 2
    assert says in one_line(done.err)
    native = ["--numerics", "native"]
    assert cli("fit", *DIGITS, "--model.name", "rooted", "--max_steps", 1, *native, *run).code == 0


def test_a_spectral_norm_is_portable(cli, tmp_path, monkeypatch) -> None:
    """Copying it gives its vectors other storage, which computes nothing."""

    def build(*_) -> Rooted:
        model = Rooted(torch.rsqrt)
        torch.nn.utils.parametrizations.spectral_norm(model.layer)
        return model

    monkeypatch.setitem(models.OURS, "spectral", build)
    words = ["fit", *DIGITS, *KNOBS, "--model.name", "spectral", "--max_steps", 1]
    done = cli(*words, "--run", tmp_path / "r")
    assert done.code == 0, done.err


def test_a_complex_parameter_has_no_portable_optimizer(cli, tmp_path, monkeypatch) -> None:
    class Turned(Rooted):
        def __init__(self) -> None:
            super().__init__(lambda x: x)
            self.turn = torch.nn.Parameter(torch.ones(64, dtype=torch.complex64))

        def forward(self, x):
            return super().forward((x.flatten(1) * self.turn).real)

    monkeypatch.setitem(models.OURS, "turned", lambda *_: Turned())
    words = ["fit", *DIGITS, *KNOBS, "--model.name", "turned", "--optim.name", "adamw"]
    done = cli(*words, "--run", tmp_path / "r")
    assert done.code == 2
    assert "turn is complex, which AdamW's fused form does not take" in one_line(done.err)


def test_what_builds_a_model_counts_as_well(cli, tmp_path, monkeypatch) -> None:
    class Table(Rooted):
        def __init__(self) -> None:
            super().__init__(lambda x: x + self.places)
            self.places = torch.nn.Parameter(torch.arange(64.0).sqrt())

    monkeypatch.setitem(models.OURS, "table", lambda *_: Table())
    done = cli("fit", *DIGITS, *KNOBS, "--model.name", "table", "--run", tmp_path / "r")
    assert done.code == 2
    assert "the model calls sqrt, " in one_line(done.err)


@pytest.mark.slow
def test_adamw_s_fused_form_moves_each_weight_by_its_own_gradient(cli, tmp_path) -> None:
    """It goes through memory as it lies: channels last would mix them up."""
    words = ["fit", *DIGITS, *KNOBS, "--optim.name", "adamw", "--model.channels_last", "true"]
    done = cli(*words, "--run", tmp_path / "last")
    assert done.code == 2
    assert "weight is not contiguous (as with model.channels_last)" in one_line(done.err)
    found = []
    for numerics in ("portable", "native"):
        run = tmp_path / numerics
        knobs = ["--optim.name", "adamw", "--optim.lr", 0.001, "--numerics", numerics]
        assert cli("fit", *DIGITS, *KNOBS, *knobs, "--run", run).code == 0
        record = json.loads((run / "run.json").read_text())
        assert record["optimizer_kernel"] == {"portable": "fused"}.get(numerics, "torch's choice")
        found.append(json.loads((run / "result.json").read_text())["metrics"]["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.slow
def test_a_portable_run_goes_on_where_the_bits_are_the_same(cli, tmp_path) -> None:
    run = tmp_path / "r"
    assert cli("fit", *DIGITS, *KNOBS, "--run", run).code == 0
    record = json.loads((run / "run.json").read_text())
    record["fingerprint"]["linear"] = "0"
    (run / "run.json").write_text(json.dumps(record))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": "stopped"}))
    done = cli("fit", *DIGITS, *KNOBS, "--run", run, "--resume")
    assert done.code == 6
    assert (
        "here are other bits in linear (of 67 probes) than where this run was started"
        in one_line(done.err)
    )
    inside = record["image"] is not None
    other = None if inside else {"identity": "0"}
    (run / "run.json").write_text(json.dumps({**record, "image": other}))
    done = cli("fit", *DIGITS, *KNOBS, "--run", run, "--resume")
    said = "which was in a container, and this is none → add ENGINE=docker"
    if inside:
        said = "which was outside of this container → add ENGINE=local"
    assert said in one_line(done.err)


def test_a_command_line_is_read_before_torch_is_loaded() -> None:
    modules = "train.launch, train.__main__, doctor.inside.like"
    look = f"from train import verbs; import sys, {modules}; verbs.found()"
    words = [sys.executable, "-c", f"{look}; assert 'torch' not in sys.modules"]
    subprocess.run(words, cwd=ROOT, check=True)


def _convolved(given, taken, kernel, **words) -> list[convolutions.Computed]:
    x, w = torch.ones(given, requires_grad=True), torch.ones((*taken, *kernel))
    call = functional.conv_transpose2d if words.pop("transposed", False) else functional.conv2d
    with convolutions.seen() as computed:
        call(x, w, **words).sum().backward()
    return computed


@pytest.mark.parametrize(
    ("given", "taken", "kernel", "words", "says"),
    [
        # Both had other bits with Haswell's 256 KiB of L2 than with 512.
        (
            (2, 127, 14, 14),
            (8, 127),
            (7, 7),
            {"stride": 3, "padding": 7, "dilation": 2},
            "127 to 8",
        ),
        (
            (1, 12, 16, 16),
            (12, 256),
            (2, 2),
            {"stride": 3, "dilation": 2, "groups": 2, "transposed": True},
            "12 to 512 channels in 2 groups, 2×2",
        ),
        ((2, 64, 14, 14), (64, 64), (3, 3), {"padding": 1}, None),
        ((2, 58, 8, 8), (58, 1), (3, 3), {"padding": 1, "groups": 58}, None),
        ((2, 3, 33, 33), (64, 3), (7, 7), {"stride": 2, "padding": 3}, None),
    ],
)
def test_a_convolution_that_follows_the_cache_is_refused(given, taken, kernel, words, says) -> None:
    computed = _convolved(given, taken, kernel, **words)
    assert {one.forward for one in computed} == {True, False}
    if says is None:
        convolutions.check(computed)
    else:
        with pytest.raises(UsageError, match=f"{says}.* cuts by the size of the CPU's cache"):
            convolutions.check(computed)


def test_an_implementation_that_nobody_compared_is_refused() -> None:
    one = convolutions.Computed("brgconv:avx2", False, True, False, "mb1_ic8oc8_ih8oh8kh1sh1dh0ph0")
    with pytest.raises(UsageError, match="by brgconv:avx2, which has not been compared"):
        convolutions.check([one])


def test_looking_at_convolutions_leaves_the_output_alone(capfd) -> None:
    print("before")
    with convolutions.seen() as computed:
        print("from the model")
    print("after")
    assert computed == []
    assert capfd.readouterr().out == "before\nfrom the model\nafter\n"
    with pytest.raises(ValueError, match="the model's"), convolutions.seen():
        raise ValueError("the model's")
    print("still there")
    assert capfd.readouterr().out == "still there\n"


def test_a_silent_onednn_is_refused() -> None:
    torch._C._set_mkldnn_enabled(False)
    try:
        with (
            pytest.raises(HostError, match="oneDNN does not report what it computes"),
            convolutions.seen(),
        ):
            pass
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_a_model_with_such_a_convolution_is_refused(cli, tmp_path, monkeypatch) -> None:
    def cut(classes, shape) -> torch.nn.Module:
        del shape
        first, second = torch.nn.Conv2d(1, 127, 3, padding=5), torch.nn.Conv2d(127, 8, 7, 3, 7, 2)
        return torch.nn.Sequential(first, second, torch.nn.Flatten(), torch.nn.LazyLinear(classes))

    monkeypatch.setitem(models.OURS, "cut", cut)
    done = cli("fit", *DIGITS, *KNOBS, "--model.name", "cut", "--run", tmp_path / "r")
    assert done.code == 2
    assert "127 to 8 channels, 7×7" in one_line(done.err)


@pytest.mark.slow
def test_a_model_that_compiles_itself_is_refused(cli, tmp_path, monkeypatch) -> None:
    def compiled(classes, shape) -> torch.nn.Module:
        del shape
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
        model[1].forward = torch.compile(model[1].forward, backend="eager")
        return model

    monkeypatch.setitem(models.OURS, "compiled", compiled)
    knobs = [*KNOBS, "--reproducibility", "deterministic", "--model.name", "compiled"]
    done = cli("fit", *DIGITS, *knobs, "--run", tmp_path / "r")
    assert done.code == 2
    assert "compiles a part of itself" in one_line(done.err)
    # What was compiled before, as in a notebook, is no fault of the next model.
    assert cli("fit", *DIGITS, *KNOBS, "--run", tmp_path / "r").code == 0


def test_weights_are_measured_where_portable_numerics_cannot_be_had(
    cli, tmp_path, monkeypatch
) -> None:
    run = tmp_path / "r"
    assert cli("fit", *DIGITS, *KNOBS, "--run", run).code == 0
    monkeypatch.setattr(variables, "possible", lambda: False)
    done = cli("evaluate", "--run", run)
    assert done.code == 0
    assert "warning: trained with numerics: portable, which this CPU cannot do" in done.err
    again = cli("fit", *DIGITS, *KNOBS, "--run", tmp_path / "again")
    assert again.code == 6
    assert "AVX2 and FMA" in one_line(again.err)
