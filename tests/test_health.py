"""How the machine fares: what is counted, what is said, and what an end for lack of memory says."""

import json
import re
import time

import pytest
import torch
from conftest import DIGITS, one_line, slow_pictures
from pynvml import NVMLError

from host import kernel
from host.errors import HostError, UsageError
from train.config import Config
from train.process import exhausted, failures, health
from train.process.health import Health
from train.process.stopwatch import Stopwatch

GPU = {"gpu_temperature": 91.0, "gpu_power": 240.0}


@pytest.mark.parametrize(
    ("figures", "workers", "said"),
    [
        ({"data_share": 0.2}, 0, {}),
        ({"data_share": 0.61}, 0, {"starved": "61 % of step time waits for data: raise data.workers to 2, or cache"}),
        ({"data_share": 0.9}, 1, {"starved": "raise data.workers to 6"}),
        ({"data_share": 0.5}, 6, {"starved": "all 6 CPUs' worth of data.workers are in use; cache"}),
        ({"data_share": 0, "gpu_throttled": 0.8, **GPU}, 0, {"throttled": "91 °C, 240 W"}),
        ({"data_share": 0, "gpu_throttled": 0.2, **GPU}, 0, {}),
        ({"data_share": 0, "memory_peak": 78, "memory_total": 80}, 0, {"full": "98 % of GPU memory"}),
        ({"data_share": 0, "memory_peak": 60, "memory_total": 80}, 0, {}),
        ({"data_share": 0, "memory_used_share": 0.97}, 0, {"full": "97 % of the cgroup's memory limit"}),
    ],
)  # fmt: skip
def test_what_is_said_of_figures(figures, workers, said) -> None:
    found = health.complaints(figures, Config(data={"workers": workers}), 6)
    assert found.keys() == said.keys()
    for kind, words in said.items():
        assert words in found[kind]


def test_spans_add_up_and_start_anew() -> None:
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        with watch.span("data"):
            time.sleep(0.02)
    with watch.span("communication"):
        pass
    read = watch.read()
    assert read["data"] >= 0.04
    assert read["communication"] < read["data"]
    assert watch.read() == {}


def test_samples_are_of_this_process(monkeypatch) -> None:
    monkeypatch.setattr(health, "_PERIOD", 0.01)
    with Health(torch.device("cpu")) as watch:
        time.sleep(0.2)
        figures = watch.take(2.0, 4, {"data": 0.5, "communication": 0.5})
    assert figures["data_share"] == figures["communication_share"] == 0.25
    assert figures["compute_share"] == 0.5
    assert 50e6 < figures["rss"] < 20e9
    assert figures["load"] >= 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"), "it asked for 2.00 GiB"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), "4096 bytes"),
        (MemoryError(), "ran out of memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "ran out of memory"),
        (RuntimeError("could not create a primitive"), None),  # or it is not known on this processor
        (RuntimeError("shapes do not fit"), None),
        (ValueError("out of range"), None),
    ],
)  # fmt: skip
def test_lack_of_memory_is_told_from_other_errors(error, said, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "3")
    (tmp_path / "latest").symlink_to("step-00000045")
    found = exhausted.out_of_memory(error, Config(), tmp_path)
    if said is None:
        assert found is None
        return
    assert found is not None
    assert found.code == 6
    assert said in str(found)
    assert "process 3" in found.problem
    assert "--lanes 16 (other bits)" in found.fix
    assert "step-00000045 is whole: add --resume" in found.fix


# As people reported them: Tianhao-Qi/Mask2DiT#4, kaito-project/kaito#976, OpenHelix-Team/cobra#24,
# murong-xu/CADS#4, huggingface/meshgen#7, jhc13/taggui#188.
@pytest.mark.parametrize(
    ("asked", "free", "kept", "pieces"),
    [
        ("35.60 GiB", "26.16 GiB", "40.69 GiB", "40.69 GiB"),
        ("546.00 MiB", "514.19 MiB", "736.86 MiB", "736.86 MiB"),
        ("158.00 MiB", "115.69 MiB", "910.35 MiB", "910.35 MiB"),
        ("22.78 GiB", "12.73 GiB", "9.35 GiB", None),  # 22.08 GiB together
        ("1002.00 MiB", "0 bytes", "129.48 MiB", None),
        ("20.00 MiB", "2.35 GiB", "24.85 MiB", None),  # there was room: it is something else
    ],
)
def test_memory_in_pieces_is_told_from_too_little(asked, free, kept, pieces, monkeypatch) -> None:
    text = (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.33 GiB of"
        f" which {free} is free. Process 76883 has 53.16 GiB memory in use. Of the allocated memory"
        f" 11.97 GiB is allocated by PyTorch, and {kept} is reserved by PyTorch but unallocated."
    )
    error = torch.cuda.OutOfMemoryError(text)
    found = exhausted.out_of_memory(error, Config())
    assert found is not None
    told = "PYTORCH_ALLOC_CONF=expandable_segments:True >> .env" in found.fix
    assert told == (pieces is not None)
    assert (f"{pieces} that torch keeps unused" in found.problem) == told
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    again = exhausted.out_of_memory(error, Config())
    assert again is not None
    assert "expandable_segments" not in again.fix


ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace"
    " below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."
)

NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled cuda error"
    " (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclUnhandledCudaError: Call to"
    " CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'"
)


# As people reported them: huggingface/accelerate#1192, sgl-project/sglang#9151,
# NVIDIA/nccl#1410, pytorch/pytorch#170045, pytorch/pytorch#111187; NVML's and Xid's own words.
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"CUDA error: uncorrectable ECC error encountered{ADVICE}",
            "CUDA error: uncorrectable ECC error encountered",
        ),
        (f"CUDA error: unspecified launch failure{ADVICE}", "unspecified launch failure"),
        (f"CUDA error: the launch timed out and was terminated{ADVICE}", "the launch timed out"),
        (
            f"CUDA error: an illegal memory access was encountered{ADVICE}",
            "an illegal memory access",
        ),
        (f"CUDA error: unknown error{ADVICE}", "CUDA error: unknown error"),
        (NCCL, "Cuda failure 999 'unknown error'"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_EXECUTION_FAILED"),
        (
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
            "CUBLAS_STATUS_EXECUTION_FAILED",
        ),
        ("GPU is lost", "GPU is lost"),
        (
            "Unable to determine the device handle for GPU 0000:65:00.0: GPU is lost.  Reboot the system",
            "GPU is lost",
        ),
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError, NVMLError])
def test_a_gpu_that_failed_is_named_with_the_last_checkpoint(
    tmp_path, monkeypatch, text, said, kind
) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    (tmp_path / "step-00000045").mkdir()
    (tmp_path / "latest").symlink_to("step-00000045")

    class Raised(kind):  # NVML's own kind makes its text of a number
        def __str__(self) -> str:
            return text

    with pytest.raises(HostError) as raised, failures.explained(Config(), tmp_path):
        raise Raised(text) if kind is not NVMLError else Raised(15)
    assert raised.value.code == 6
    assert "process 9: GPU 1 failed: " in raised.value.problem
    assert said in raised.value.problem
    assert "consider" not in raised.value.problem
    assert "step-00000045 is whole: add --resume" in raised.value.fix
    one_line(raised.value.line())


# As people reported them: leptonai/gpud#1209, NVIDIA/NVSentinel#155, and drivers before 2017.
UNKNOWN = "pid='<unknown>', name=<unknown>"
OFF = """3,7,90000000,-;NVRM: The NVIDIA GPU 0000:b3:00.0
3,8,90000001,-;NVRM: (PCI ID: 10de:26b5) installed in this system has
3,9,90000002,-;NVRM: fallen off the bus and is not responding to commands."""
LOGGED = [
    ("6,1,90000000,-;NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus",
     "Xid 79 of GPU 0000:44:00: GPU has fallen off the bus"),
    (f"4,9,90000000,-;NVRM: Xid (PCI:0000:b1:00): 48, {UNKNOWN}, DBE (double bit error) ECC Error 0x1",
     "Xid 48 of GPU 0000:b1:00: DBE (double bit error) ECC Error 0x1"),
    ("4,9,90000000,-;NVRM: Xid (0000:03:00): 31, Ch 00000008, engmask 00000101",
     "Xid 31 of GPU 0000:03:00: Ch 00000008, engmask 00000101"),
    (OFF, "GPU 0000:b3:00.0 has fallen off the bus"),
    ("6,1,10000000,-;NVRM: Xid (PCI:0000:44:00): 79, long ago", None),
    ("6,1,90000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n garbage\n;;;\n6,x,y;z", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("log", "said"), LOGGED)
def test_what_the_kernel_logged_is_told(tmp_path, monkeypatch, log, said) -> None:
    (tmp_path / "kmsg").write_text(log)
    monkeypatch.setattr(kernel.time, "monotonic", lambda: 100.0)
    assert kernel.gpu_error(20.0, tmp_path / "kmsg") == said
    real = kernel.gpu_error
    monkeypatch.setattr(kernel, "gpu_error", lambda _: real(20.0, tmp_path / "kmsg"))
    with pytest.raises(HostError) as raised, failures.explained(Config(), tmp_path):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")
    assert ("the kernel's log has" in raised.value.problem) == (said is not None)
    assert (said or "launch failure") in raised.value.problem
    assert ("dmesg" in raised.value.fix) == (said is None)


def test_a_kernel_s_log_that_cannot_be_read_is_none(tmp_path) -> None:
    assert kernel.gpu_error(600.0, tmp_path / "nothing") is None
    kernel.gpu_error(600.0)  # this machine's own, or none


def test_an_index_out_of_range_is_no_broken_gpu() -> None:
    text = f"CUDA error: device-side assert triggered{ADVICE}"
    expected = pytest.raises(UsageError, match="an index that does not exist")
    with expected as raised, failures.explained(Config()):
        raise torch.AcceleratorError(text)
    assert "CUDA_LAUNCH_BLOCKING=1" in raised.value.fix


def test_what_the_compiler_cannot_do_is_told_from_what_the_model_does() -> None:
    """Computed as it is after so many shapes, a lane would follow what came before it."""
    compiling = Config(model={"compile": True})
    # Not monkeypatch, which deletes what it did not find in the module itself: for good.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=2):
        compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
        compiled(torch.ones(1))
        compiled(torch.ones(2))
        expected = pytest.raises(UsageError, match=r"cannot be compiled.*more shapes inside")
        with expected as raised, failures.explained(compiling):
            compiled(torch.ones(3))
    assert "--model.compile" in raised.value.fix
    torch.compiler.reset()
    with pytest.raises(ValueError, match="its own"), failures.explained(compiling):
        raise ValueError("its own")


@pytest.mark.slow
def test_a_run_that_lacks_memory_ends_with_what_to_change(cli, tmp_path, monkeypatch) -> None:
    """The allocator's own error, of a tensor that no machine has room for."""
    from train import loop

    real = loop.update

    def update(parts, batches, step, lr):
        if step == 12:
            torch.empty(1 << 60, dtype=torch.uint8)
        return real(parts, batches, step, lr)

    monkeypatch.setattr(loop, "update", update)
    knobs = ["--max_steps", "20", "--checkpoint.every", "5", "--eval.every", "20"]
    done = cli("fit", *DIGITS, "--run", tmp_path / "run", *knobs)
    assert done.code == 6
    assert "process 0 ran out of memory" in done.err
    assert "step-00000010 is whole: add --resume" in done.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"


@pytest.mark.slow
@pytest.mark.alone
def test_a_starved_run_says_so_and_a_healthy_one_does_not(cli, tmp_path, monkeypatch) -> None:
    """Real decoding and real steps; looked at every two seconds, not ten."""
    monkeypatch.setattr("train.company._PERIOD", 2.0)
    slow_pictures(tmp_path / "slow")
    common = [
        "--model.name",
        "mlp",
        "--batch_size",
        "16",
        "--lanes",
        "2",
        "--eval.every",
        "1000",
        "--log.every",
        "5",
    ]
    source = ["--data.source", "folder", "--data.root", tmp_path / "slow", "--data.size", "32"]
    source += ["--data.mean", "[0.5,0.5,0.5]", "--data.std", "[0.2,0.2,0.2]"]
    starved = cli(
        "fit", *common, *source, "--run", tmp_path / "starved", "--data.cache", "0",
        "--epochs", "1.5", "--optim.lr", "0.001",
    )  # fmt: skip
    assert starved.code == 0, starved.err
    said = re.findall(
        r"warning: (\d+) % of step time waits for data: raise data.workers to (\d+)", starved.out
    )
    assert len(said) == 1
    assert int(said[0][0]) > 60
    kept = cli(
        "fit", *common, *source, "--run", tmp_path / "kept", "--epochs", "25", "--optim.lr", "0.001"
    )
    assert kept.code == 0
    assert "warning" not in kept.out
    for name, low, high in (("starved", 0.6, 1.0), ("kept", 0.0, 0.3)):
        rows = [
            json.loads(row) for row in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        shares = [row["data_share"] for row in rows if row["kind"] == "health"]
        assert shares
        assert all(low <= share <= high for share in shares), (name, shares)
