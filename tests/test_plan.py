"""How many processes, on what, at which precision: one plan, and everybody's the same."""

from pathlib import Path

import pytest

from container import overlay
from doctor.inside import devices, verify
from host import cuda, hardware, nvidia, plan
from host.errors import LockstepError
from host.machine import Machine
from train.config import Config
from train.process import fitting
from train.tuning.trials import Trials

# GPUS, CPUS, ACCELERATE, PRECISION, GPUs that CUDA sees → processes, device, precision, the file;
# or words of the refusal. An experiment of 8 lanes.
TABLE = [
    ("", "", "", "", 0, (1, "cpu", "no", "cpu")),
    ("", "", "", "", 1, (1, "cuda", "no", "gpu")),
    ("", "", "", "", 2, (2, "cuda", "no", "multi_gpu")),
    ("", "", "", "", 3, (3, "cuda", "no", "multi_gpu")),
    ("", "", "", "", 6, (4, "cuda", "no", "multi_gpu")),
    ("", "", "", "", 16, (8, "cuda", "no", "multi_gpu")),
    ("", "", "", "no", 2, (2, "cuda", "no", "multi_gpu")),
    ("", "", "", "bf16", 0, (1, "cpu", "bf16", "cpu")),
    ("", "", "", "bf16", 1, (1, "cuda", "bf16", "bf16")),
    ("", "", "", "bf16", 4, (4, "cuda", "bf16", "bf16")),
    ("", "", "", "fp16", 4, (4, "cuda", "fp16", "fp16")),
    ("", "", "", "fp16", 0, "FP16 needs a GPU"),
    ("", "", "", "fp8", 1, "PRECISION=fp8 is none of no, fp16, bf16"),
    ("0", "", "", "", 0, (1, "cpu", "no", "cpu")),
    ("0", "", "", "", 4, (1, "cpu", "no", "cpu")),
    ("0", "", "", "bf16", 4, (1, "cpu", "bf16", "cpu")),
    ("0", "", "", "fp16", 4, "FP16 needs a GPU"),
    ("1", "", "", "", 4, (1, "cuda", "no", "gpu")),
    ("1", "", "", "bf16", 4, (1, "cuda", "bf16", "bf16")),
    ("2", "", "", "", 4, (2, "cuda", "no", "multi_gpu")),
    ("3", "", "", "", 4, (3, "cuda", "no", "multi_gpu")),
    ("4", "", "", "fp16", 4, (4, "cuda", "fp16", "fp16")),
    ("4", "", "", "", 2, "GPUS=4, and 2 GPUs can be seen here → use GPUS=2"),
    ("4", "", "", "", 0, "GPUS=4, and no GPUs can be seen here → use CPUS=1"),
    ("", "", "fsdp", "", 0, "ACCELERATE=fsdp asks for 2 GPUs, and no GPUs can be seen here → use CPUS=2"),
    ("2", "", "", "", 1, "GPUS=2, and 1 GPU can be seen here → use GPUS=1"),
    ("all", "", "", "", 1, (1, "cuda", "no", "gpu")),
    ("all", "", "", "", 4, (4, "cuda", "no", "multi_gpu")),
    ("all", "", "", "bf16", 3, (3, "cuda", "bf16", "bf16")),
    ("all", "", "", "", 0, "GPUS=all, and no GPUs can be seen here → use CPUS=1"),
    ("most", "", "", "", 6, (4, "cuda", "no", "multi_gpu")),
    ("most", "", "", "", 0, "GPUS=free, and no GPUs can be seen here"),
    ("most", "", "multi_cpu", "", 2, "GPUS=free, and ACCELERATE=multi_cpu computes on the CPU"),
    ("two", "", "", "", 2, "GPUS=two is no number of processes → give a number or all"),
    ("-1", "", "", "", 2, "GPUS=-1 is no number of processes"),
    ("", "1", "", "", 0, (1, "cpu", "no", "cpu")),
    ("", "1", "", "", 4, (1, "cpu", "no", "cpu")),
    ("", "2", "", "", 0, (2, "cpu", "no", "multi_cpu")),
    ("", "4", "", "", 2, (4, "cpu", "no", "multi_cpu")),
    ("", "4", "", "bf16", 2, (4, "cpu", "bf16", "multi_cpu")),
    ("", "2", "", "fp16", 2, "FP16 needs a GPU"),
    ("", "0", "", "", 0, "CPUS=0 is no number of processes → give a number from 1"),
    ("", "many", "", "", 0, "CPUS=many is no number of processes"),
    ("1", "1", "", "", 1, "GPUS and CPUS are both set"),
    ("0", "2", "", "", 1, "GPUS and CPUS are both set"),
    ("", "", "cpu", "", 0, (1, "cpu", "no", "cpu")),
    ("", "", "cpu", "", 4, (1, "cpu", "no", "cpu")),
    ("", "", "cpu", "bf16", 4, (1, "cpu", "bf16", "cpu")),
    ("", "", "cpu", "fp16", 4, "FP16 needs a GPU"),
    ("", "1", "cpu", "", 4, (1, "cpu", "no", "cpu")),
    ("", "2", "cpu", "", 4, "CPUS=2, and ACCELERATE=cpu starts one process"),
    ("2", "", "cpu", "", 4, "GPUS=2, and ACCELERATE=cpu computes on the CPU"),
    ("all", "", "multi_cpu", "", 4, "GPUS=all, and ACCELERATE=multi_cpu computes on the CPU"),
    ("0", "", "cpu", "", 4, (1, "cpu", "no", "cpu")),
    ("", "", "multi_cpu", "", 0, (2, "cpu", "no", "multi_cpu")),
    ("", "", "multi_cpu", "", 4, (2, "cpu", "no", "multi_cpu")),
    ("", "4", "multi_cpu", "", 0, (4, "cpu", "no", "multi_cpu")),
    ("", "", "gpu", "", 4, (1, "cuda", "no", "gpu")),
    ("", "", "gpu", "bf16", 4, (1, "cuda", "bf16", "gpu")),
    ("", "", "gpu", "", 0, "ACCELERATE=gpu asks for 1 GPU, and no GPUs can be seen here"),
    ("2", "", "gpu", "", 4, "GPUS=2, and ACCELERATE=gpu starts one process"),
    ("", "2", "gpu", "", 4, "CPUS=2, and ACCELERATE=gpu computes on GPUs"),
    ("0", "", "gpu", "", 4, "GPUS=0, and ACCELERATE=gpu computes on GPUs"),
    ("", "", "multi_gpu", "", 4, (2, "cuda", "no", "multi_gpu")),
    ("", "", "multi_gpu", "", 1, "ACCELERATE=multi_gpu asks for 2 GPUs, and 1 GPU can be seen"),
    ("3", "", "multi_gpu", "", 4, (3, "cuda", "no", "multi_gpu")),
    ("all", "", "multi_gpu", "bf16", 4, (4, "cuda", "bf16", "multi_gpu")),
    ("", "", "bf16", "", 4, (1, "cuda", "bf16", "bf16")),
    ("4", "", "bf16", "", 4, (4, "cuda", "bf16", "bf16")),
    ("4", "", "bf16", "no", 4, (4, "cuda", "no", "bf16")),
    ("4", "", "fp16", "", 4, (4, "cuda", "fp16", "fp16")),
    ("", "", "multi_gpus", "", 4, "no hardware config .*did you mean multi_gpu"),
]  # fmt: skip
NAMES = ("GPUS", "CPUS", "ACCELERATE", "PRECISION")


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 60


@pytest.mark.parametrize(
    "row", TABLE, ids=lambda r: " ".join(f"{n}={v}" for n, v in zip(NAMES, r, strict=False) if v)
)
def test_make_doctor_launcher_and_tuner_agree(row, tmp_path: Path, monkeypatch) -> None:
    *values, visible, expected = row
    variables = {n: v for n, v in zip(NAMES, values, strict=True) if v}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = Config()

    # The launcher's, the tuner's, and the doctor's: the same plan, or the same refusal.
    def tuner() -> plan.Plan:
        return Trials(tmp_path, visible).plan(config)

    monkeypatch.setattr(devices, "count", lambda: visible)
    monkeypatch.setattr(fitting, "fit", lambda *_, **__: None)  # that would ask real GPUs
    file = tmp_path / "experiment.yaml"
    file.write_text("data: {holdout: 0.2}\n")
    seen = {f.name: f for f in verify.examine(file, Machine(environ=variables))}
    if isinstance(expected, str):
        for ask in (lambda: plan.make(variables, visible, config.lanes, level="lockstep"), tuner):
            with pytest.raises(LockstepError, match=expected):
                ask()
        assert seen["lanes"].status == "fail"
        return
    made = plan.make(variables, visible, config.lanes, level="lockstep")
    assert (made.processes, made.device, made.precision, made.config.stem) == expected
    assert tuner() == made
    if made.processes == 3:
        assert "batch 128 = (3+3+2) × 16" in seen["lanes"].seen
    else:
        assert f"batch 128 = {made.processes} × " in seen["lanes"].seen
    # Make's side of a container: GPUs only where the plan computes on them.
    gpus = [
        nvidia.Gpu({"index": str(n), "uuid": f"GPU-{n}", "name": "NVIDIA A100"})
        for n in range(visible)
    ]
    files, _, _ = overlay.choose(variables, cuda.Driver("580.1", gpus), "nvidia")
    assert bool(files) == (made.device == "cuda")
    assert plan.on_cpu(variables) <= (made.device == "cpu")
    # What Accelerate is told is the plan.
    words = dict(zip(made.words[::2], made.words[1::2], strict=True))
    assert int(words.get("--num_processes", made.processes)) == made.processes


@pytest.mark.parametrize(
    ("visible", "lanes", "stages", "processes"),
    [
        (16, 8, "2", 16),
        (6, 8, "2", 6),
        (3, 8, "2", 2),
        (4, 1, "2", 2),
        (12, 4, "layer2,layer4", 12),
        (1, 8, "2", 1),  # which the check of stages refuses
    ],
)
def test_all_gpus_take_copies_of_a_model_in_stages(visible, lanes, stages, processes) -> None:
    made = plan.make({"STAGES": stages}, visible, lanes, level="lockstep")
    assert made.processes == processes


# What matters in hardware configs of others, by their names in the accelerate and trl repositories
# (November 2026), on two GPUs → the plan, or words of the refusal.
FOREIGN = {
    "accelerate examples multi_gpu": ("distributed_type: \"MULTI_GPU\"\nmixed_precision: \"bf16\"\nnum_processes: 2", (2, "cuda", "bf16")),
    "accelerate examples single_accelerator": ("distributed_type: \"NO\"\nmixed_precision: \"bf16\"", (1, "cuda", "bf16")),
    "accelerate examples multi_node": ("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 4", (2, "cuda", "no")),
    "accelerate examples fp8": ("distributed_type: \"NO\"\nmixed_precision: \"fp8\"", "asks for fp8"),
    "accelerate examples fsdp": ("distributed_type: FSDP\nmixed_precision: 'bf16'\nnum_processes: 2", (2, "cuda", "bf16")),
    "accelerate examples deepspeed": ("distributed_type: DEEPSPEED\nnum_processes: 2", "distributed_type: DEEPSPEED"),
    "accelerate examples multi_xpu": ("distributed_type: \"MULTI_XPU\"\nnum_processes: 2", "distributed_type: MULTI_XPU"),
    "accelerate tests mpi": ("distributed_type: MULTI_CPU\nnum_machines: 4\nnum_processes: 16\nuse_cpu: true", "distributed_type: MULTI_CPU"),
    "accelerate tests tp": ("distributed_type: MULTI_GPU\nnum_processes: 2  # adjust", (2, "cuda", "no")),
    # It says eight, and Accelerate starts one.
    "trl single_gpu": ("distributed_type: \"NO\"\ngpu_ids: all\nmixed_precision: 'bf16'\nnum_processes: 8", (1, "cuda", "bf16")),
    "trl multi_gpu": ("distributed_type: MULTI_GPU\ngpu_ids: all\nmixed_precision: 'bf16'\nnum_processes: 8", "asks for 8 GPUs, and 2 GPUs can be seen here"),
    "one that does not say how many": ("distributed_type: MULTI_GPU", (2, "cuda", "no")),
    "YAML's other words": ("distributed_type: 'NO'\nuse_cpu: yes", (1, "cpu", "no")),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_hardware_configs_of_others_work_or_are_refused_by_name(
    name, tmp_path: Path, monkeypatch
) -> None:
    text, expected = FOREIGN[name]
    monkeypatch.setattr(hardware, "CONFIGS", tmp_path)
    (tmp_path / "theirs.yaml").write_text(text + "\n")
    if isinstance(expected, str):
        with pytest.raises(LockstepError, match=expected) as raised:
            plan.make({"ACCELERATE": "theirs"}, 2, 8)
        assert "\n" not in str(raised.value)
        return
    made = plan.make({"ACCELERATE": "theirs"}, 2, 8)
    assert (made.processes, made.device, made.precision) == expected
