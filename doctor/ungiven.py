"""Jobs and containers that were given none of a machine's GPUs."""

from __future__ import annotations

from typing import Callable

from doctor import kind
from doctor.finding import Finding, fail, skip
from host import limits, nvidia
from host.machine import Machine

ASKS = {
    "PBS_JOBID": "qsub -l select=1:ngpus=1 (with the CPUs and memory that it had)",
    "LSB_JOBID": "bsub -gpu num=1",
}
"""How a job asks for a GPU, by a variable of its scheduler's."""


def job(machine: Machine, on_bus: str, unwell: Callable[..., Finding]) -> Finding:
    """A scheduler gives a job the devices that it asked for."""
    other = next((ask for name, ask in ASKS.items() if name in machine.environ), None)
    return unwell(
        "driver",
        f"{on_bus}, and this job was given none ({'its scheduler' if other else 'Slurm'}'s devices"
        " cgroup)",
        "it trains on the CPU",
        f"ask for one: {other or '#SBATCH --gres=gpu:1, or srun --gres=gpu:1'}",
    )


def sandboxed(machine: Machine) -> Finding | None:
    """A pod or container that was given a GPU, in a sandbox of gVisor's that passes none on.

    https://github.com/google/gvisor/blob/master/g3doc/user_guide/gpu.md
    """
    given = machine.environ.get("NVIDIA_VISIBLE_DEVICES", "void")
    if not limits.is_gvisor(machine.root) or given in ("void", "none", "", "all"):
        return None
    if nvidia.devices(machine) or machine.environ.get("CPUS"):
        return None
    return fail(
        "driver",
        f"this container was given {given}, and its sandbox (gVisor) does not pass it on",
        "it trains on the CPU",
        "whoever runs it: runsc with --nvproxy=true, and a driver that runsc nvproxy"
        " list-supported-drivers names; or another runtime, as runc; or CPUS=1",
    )


def container(machine: Machine, unwell: Callable[..., Finding]) -> Finding:
    """A container without GPUs, on a machine that has some: it may be meant so."""
    seen = "the host's GPUs are not given to this container"
    given = limits.job_gpus(machine.environ)
    if given is not None:
        return unwell(
            "driver",
            f"{seen}, and its Slurm job has some ({given})",
            "it trains on the CPU",
            "apptainer (singularity) exec --nv"
            if kind.is_apptainer(machine)
            else "where enroot starts it (Pyxis): export NVIDIA_VISIBLE_DEVICES=all"
            " NVIDIA_DRIVER_CAPABILITIES=compute,utility before srun; docker or podman: --gpus all",
        )
    if machine.environ.get("RUNPOD_GPU_COUNT") == "0" and not machine.environ.get("CPUS"):
        return unwell(
            "driver",
            f"{seen}: RunPod has started this pod with none (RUNPOD_GPU_COUNT=0)",
            "it trains on the CPU: others have its GPU since it was stopped",
            "wait, and start it again; or another pod with the same network volume; or CPUS=1",
        )
    asks = machine.environ.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("void", "none", "")
    if not asks or machine.environ.get("CPUS"):
        return skip("driver", seen)
    if "KUBERNETES_SERVICE_HOST" not in machine.environ:
        return unwell(
            "driver",
            f"{seen}, whose image asks for them (NVIDIA_VISIBLE_DEVICES)",
            "it was started without: it trains on the CPU",
            "docker run --gpus all (podman: --device nvidia.com/gpu=all; Compose: capabilities:"
            " [gpu]); or, if it is meant so, CPUS=1",
        )
    return unwell(
        "driver",
        f"{seen}, which asks for them (NVIDIA_VISIBLE_DEVICES)",
        "the pod was started by a runtime that does not know GPUs: it trains on the CPU",
        "in the pod's spec runtimeClassName: nvidia, and resources.limits nvidia.com/gpu: 1;"
        " where it has both, the runtime takes no variable: deviceListStrategy=volume-mounts of the"
        " device plugin",
    )
