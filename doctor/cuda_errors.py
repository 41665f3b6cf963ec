"""Whether CUDA starts, what its errors mean, and what helps."""

from __future__ import annotations

import re
from dataclasses import replace

from doctor import cuda_here, pytorch
from doctor.cuda_numbers import ERRORS
from doctor.finding import Finding, fail, ok, skip, warn
from host import visible
from host.machine import NO_ANSWER, Machine
from host.text import whole

_FIRST = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"

_PREAMBLE = re.compile(r"^.*already set an error\? *")
_WORDS = {
    "too old": ("35", "this torch needs a newer driver", "CUDA=auto make train, or upgrade it"),
    "driver initialization failed": ("3", *ERRORS["3"]),
    "unknown error": ("999", *ERRORS["999"]),
    "busy or unavailable": ("46", *ERRORS["46"]),
    "uncorrectable ECC": ("214", *ERRORS["214"]),
    "no kernel image": ("209", *ERRORS["209"]),
    "out of memory": ("2", *ERRORS["2"]),
    "No CUDA GPUs are available": ("100", *ERRORS["100"]),
    "Found no NVIDIA driver": (
        "35",
        "this container or environment does not reach the driver's libcuda",
        "docker run --gpus all, or make train; on the host: nvidia-smi, and make doctor",
    ),
}


def starts(machine: Machine) -> Finding:
    """The driver's own CUDA starts, of which nvidia-smi says nothing."""
    if not visible.seen(machine):
        return skip("CUDA starts", "no GPU")
    answer = machine.run("python3", "-c", _FIRST, seconds=60)
    if answer.code == NO_ANSWER:
        return fail(
            "CUDA starts",
            "it does not come back within a minute",
            "what computes on a GPU would wait for ever",
            "sudo dmesg | grep -iE 'nvrm|xid'; then sudo reboot",
        )
    usual = ("nothing can be computed on the GPUs", "nvidia-smi; sudo dmesg | tail")
    number = whole(answer.out.strip())
    if answer.code < 0:
        return fail("CUDA starts", f"no: its library ends what starts it ({-answer.code})", *usual)
    if number is None:
        return _by_torch(machine)
    if number == 0:
        return ok("CUDA starts", "yes")
    # Another library than the driver's own may be found first; a container has its own.
    unwell = warn if machine.environ.get("LD_LIBRARY_PATH") else fail
    meant = cuda_here.meant(machine, str(number)) or ERRORS.get(str(number), usual)
    return unwell("CUDA starts", f"no: error {number}", *meant)


def _by_torch(machine: Machine) -> Finding:
    """Where python3 finds no libcuda, a PyTorch of its own may."""
    told = pytorch.ask(machine, pytorch.STARTS)
    words, answer = told if told is not None else ([], None)
    if words[1:] == ["True"]:
        return ok("CUDA starts", "yes")
    said = answer.err.partition("CUDA initialization: ")[2].strip() if answer and words else ""
    # What is built for another CUDA, or for none, has a row of its own.
    if not said or "too old" in said:
        return skip("CUDA starts", "not known: there is no python3 that finds libcuda.so.1")
    found = judge(said.splitlines()[0])
    number = re.match(r"error (\d+):", found.seen)
    here = cuda_here.meant(machine, number.group(1)) if number else None
    why, fix = here or (found.why, found.fix)
    return replace(
        found, name="CUDA starts", seen=f"no, says PyTorch: {found.seen}", why=why, fix=fix
    )


def judge(said: str) -> Finding:
    """A failure of CUDA's first call, by its number or its words."""
    said = _PREAMBLE.sub("", said)
    found = re.search(r"Error (\d+): ([^(]*)", said)
    if found and found.group(1) in ERRORS:
        why, fix = ERRORS[found.group(1)]
        return fail("CUDA", f"error {found.group(1)}: {found.group(2).strip()}", why, fix)
    for words, (number, why, fix) in _WORDS.items():
        if words in said:
            return fail("CUDA", f"error {number}: {said[:120]}", why, fix)
    return fail(
        "CUDA", said[:160], "nothing can be computed on the GPUs", "nvidia-smi; sudo dmesg | tail"
    )
