"""What a log says of building NVIDIA's module, where that went wrong."""

from __future__ import annotations

import re

_KEPLER = "470"  # GTX 600 and 700, K80
_LAST = ("304", "340", "390")  # for cards up to Fermi; no changes for new kernels any more
_ERRORS = (r"^(?!.* the step\b).*\berror: .*$", r"^.*\berror\b.*$")
_TOOLS = (
    "Debian, Ubuntu: sudo apt-get install build-essential libelf-dev; Fedora, RHEL: sudo dnf"
    " install gcc gcc-c++ make elfutils-libelf-devel; Arch: sudo pacman -S base-devel; then {again}"
)
# Sign; why; what helps. No newer driver would.
_LACKS = (
    (
        (
            r"^.*\b(?:g\+\+|c\+\+|gcc|cc|ld|make|flex|bison|bc): (?:command )?not found.*$"
            r"|^.*error trying to exec 'cc1(?:plus)?'.*$"
        ),
        "a tool that builds modules is not installed",
        _TOOLS,
    ),
    (
        r"^(?!.*warning:).*please install libelf-dev.*$",
        "headers that modules are built with are not installed",
        _TOOLS,
    ),
    (
        r"^.*internal compiler error: (?:Segmentation fault|Illegal instruction).*$",
        "a compiler that crashes so has mostly met memory that fails, and not a fault of its own",
        (
            "have the memory tested (memtest86+ for a night), XMP or EXPO off in the BIOS until"
            " then; then {again}"
        ),
    ),
    (
        r"^.*Kernel configuration is invalid.*$",
        "this kernel's headers are not complete",
        (
            "install them again (--reinstall); those of a kernel of one's own: make olddefconfig &&"
            " make prepare, in its sources; then {again}"
        ),
    ),
    (
        (
            r"^.*\b(?:objtool|fixdep|genksyms|modpost|resolve_btfids): (?:not found|No such file"
            r"|.*format error).*$|^.*cannot open linker script file scripts/module\.lds.*$"
            r"|^.*Module\.symvers file is missing.*$"
        ),
        "this kernel's headers are not complete, or were made on another kind of processor",
        (
            "install those of the distribution again (--reinstall); those of a kernel of one's own:"
            " make scripts, on this machine; then {again}"
        ),
    ),
    (
        r"^.*No space left on device.*$",
        "there was no room to build it",
        "df -h / /tmp /var; make room, and {again}",
    ),
    (
        r"^.*Killed signal terminated program.*$",
        "memory ran out while it was built",
        "end what takes memory, and {again}",
    ),
    (
        r"^.*\bld\.lld: (?:(?:command )?not found|No such file).*$",
        "this kernel was built by clang and its linker",
        "the packages clang, llvm and lld; then {again}",
    ),
    (
        r"^.*incompatible gcc/plugin versions.*$",
        "the compiler was upgraded since this kernel was built",
        "upgrade the rest too, and boot the newest kernel; then {again}",
    ),
    (
        r"^.*missing MODULE_LICENSE\(\) in \S*nvidia.*$",
        "the linker is another one than GNU's (mold), and leaves out what the kernel wants",
        "sudo ln -sf ld.bfd /usr/bin/ld (or update-alternatives --set ld /usr/bin/ld.bfd); {again}",
    ),
    (
        r"^.*version .GLIBC_[\d.]+. not found \(required by scripts/.*$",
        "this kernel's headers are made for a newer system than this one",
        "boot the distribution's own kernel, and {again}; or upgrade the system",
    ),
)
_CLANG = (
    "the kernel was built by clang, and its modules want the same",
    (
        "sudo pacman -S clang llvm lld (elsewhere: the packages clang, llvm, lld), and {again};"
        " where gcc is taken all the same: export LLVM=1 CC=clang in /etc/dkms/framework.conf"
    ),
)


_CC = (
    "the kernel was built by gcc, and cc is clang here",
    "sudo update-alternatives --set cc /usr/bin/gcc, or sudo ln -sf gcc /usr/bin/cc; then {again}",
)


def read(
    said: str, who: str, version: str, path: str, before: str = ""
) -> tuple[str, str, str] | None:
    """What a log says of an attempt to build release `version`; None: nothing went wrong.

    Args:
        who: DKMS or NVIDIA's installer.
        path: the log's.
        before: another kernel, which has a module.
    """
    error = next(
        filter(None, (re.search(sign, said, re.MULTILINE | re.IGNORECASE) for sign in _ERRORS)),
        None,
    )
    again = "sudo dkms autoinstall && sudo modprobe nvidia" if who == "DKMS" else "install it again"
    lacking = _lacking(said, error.group() if error else "")
    if lacking is not None:
        line, why, fix = lacking
        return f"{who} could not build its module: {line[:120]}", why, fix.format(again=again)
    if error is None:
        return None
    line = re.sub(r"^\S*/(?=[^/\s]+:\d)", "", error.group().strip())  # a file's name alone
    seen = f"{who} could not build its module: {line[:120]}"
    compiled = _compiled(said, again)
    if compiled is not None:
        return (seen, *compiled)
    if "PREEMPT_RT" in said:
        return (
            f"{who} could not build its module: the kernel is a real-time one (PREEMPT_RT)",
            "NVIDIA's build refuses such kernels",
            (
                "boot a kernel without PREEMPT_RT (Ubuntu: linux-generic); or, at your own"
                " risk, build with IGNORE_PREEMPT_RT_PRESENCE=1"
            ),
        )
    major = version.partition(".")[0]
    if major in _LAST:
        return (
            seen,
            f"branch {major} is the last for its cards, and is not kept up with new kernels",
            "boot the kernel before, or an LTS one; or a build of that branch with patches",
        )
    why = "driver and kernel do not fit each other"
    if "GPL-only symbol" in said:
        why = f"release {version} calls what this kernel gives to free modules alone"
    older = f"boot kernel {before}, which has one" if before else "boot the kernel before"
    none = "; Kepler has no newer one: a kernel with LTS, or a build of 470 with patches"
    return seen, why, f"read {path}; install a newer driver, or {older}{none * (major == _KEPLER)}"


def lacking(said: str, who: str, again: str) -> tuple[str, str, str] | None:
    """The same in a log of another builder's: seen, why, fix."""
    found = _lacking(said, "")
    if found is None:
        return None
    line, why, fix = found
    return f"{who} could not build its module: {line[:120]}", why, fix.format(again=again)


def _lacking(said: str, error: str) -> tuple[str, str, str] | None:
    """What this system lacks, whatever the driver's release: the log's line, why, fix."""
    for sign, why, fix in _LACKS:
        found = re.search(sign, said, re.MULTILINE)
        if found is not None:
            return found.group().strip(), why, fix
    clang = re.search(r"kernel was built by:.*clang", said) is not None
    used = re.search(r"You are using:(.*)", said)
    ours = used is not None and "clang" in used.group(1)
    if error and clang and used is not None and not ours:
        return (error.strip(), *_CLANG)
    option = "clang: error: unknown argument" in said
    gcc = re.search(r"kernel was built by:.*gcc", said) is not None
    if error and gcc and (ours or option):
        return (error.strip(), *_CC)
    return None


def _compiled(said: str, again: str) -> tuple[str, str] | None:
    """The kernel was built by another compiler, and that matters: why, and what helps."""
    forced = again.replace("sudo dkms", "sudo IGNORE_CC_MISMATCH=1 dkms")
    forced = forced if forced != again else f"{again}, with IGNORE_CC_MISMATCH=1"
    if "Failed CC version check" in said:
        return (
            "the kernel was built by another release of the compiler",
            f"upgrade gcc and kernel to one release's; or {forced}",
        )
    amazons = re.search(r"built by: *\S*?(gcc\d+)-(?:gcc|cc)\b", said)
    gcc = amazons.group(1) if amazons else _other_gcc(said)
    if gcc is None:
        return None
    fix = (
        f"sudo apt-get install {gcc}; sudo update-alternatives --install /usr/bin/gcc gcc"
        f" /usr/bin/{gcc} 20"
    )
    if amazons:
        fix = (
            f"sudo yum install {gcc}; sudo sed -i \"s,'make',& CC=/usr/bin/{gcc}-cc,\""
            " /usr/src/nvidia-*/dkms.conf"
        )
    if not re.fullmatch(r"gcc-?\d+", gcc):
        number = gcc.partition(" ")[2]
        fix = (
            "boot this release's own kernel; or upgrade the system to the release it came from;"
            " where another gcc comes first in PATH (conda, a"
            f" module), without it; Enterprise Linux: sudo dnf install gcc-toolset-{number}, and"
            f" build within scl enable gcc-toolset-{number}"
        )
    elif not amazons:
        fix += " (where apt has none: boot the release's own kernel)"
    why = f"the kernel was built by {gcc}, and this machine's compiler is another one"
    return why, f"{fix}; {again}"


def _other_gcc(said: str) -> str | None:
    """The kernel's compiler, where another one was used. NVIDIA's build says "differs" where the
    two have other names, too: the versions tell.
    """
    kernel = re.search(r"kernel was built by: *\S*?(gcc(?:-\d+)?)\b.*", said)
    used = re.search(r"You are using: *(.*)", said)
    if kernel is None or not ("compiler differs" in said or "unrecognized command" in said):
        return None
    # A date, or whose it is, may stand behind.
    number = r" (\d+)\.\d+\.\d+(?= \d{8}\b| \(|$|,)"
    versions = [re.findall(number, each.group().strip())[:1] for each in (kernel, used) if each]
    if kernel.group(1) == "gcc":  # its number stands behind
        known = len(versions) == 2 and all(versions) and versions[0] != versions[1]
        return f"gcc {versions[0][0]}" if known else None
    return None if len(versions) == 2 and versions[0] == versions[1] != [] else kernel.group(1)
