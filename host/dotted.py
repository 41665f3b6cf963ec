"""A user's own functions by their dotted path, `my_package.my_module:function`, and their files."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import pkgutil
import re
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from host import CONTAINER, HOME, INSIDE
from host.errors import UsageError, first_line, nearest

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
TIMM = "timm:"
_OURS = ("container", "doctor", "host", "train")
_INSTALLED = ("site-packages", "dist-packages")
# Python keeps what it imported; this is what those files were then. None: not the user's.
_SEEN: dict[str, str | None] = {}


def is_path(text: str) -> bool:
    """Whether it names a function of a module; `timm:name` is a model of that library."""
    return _PATH.fullmatch(text) is not None and not text.startswith(TIMM)


def meant(text: str) -> str:
    """What to say for a file of the user's that `text` seems to mean; "" where there is none.

    `nets`, `nets.py`, `./nets.py:build` and `nets.build` mean a function of nets.py, `nets:build`.
    """
    named, _, function = text.removeprefix("./").partition(":")
    name = named.removesuffix(".py").replace("/", ".")
    outer, _, last = name.rpartition(".")
    for module, wanted in ((name, function), (outer, last)):
        file = Path(module.replace(".", "/") + ".py")
        if not is_path(f"{module}:{wanted or 'x'}") or not file.is_file():
            continue
        try:
            inside = ast.parse(file.read_bytes()).body
        except (SyntaxError, ValueError, OSError):
            inside = []
        kinds = (ast.FunctionDef, ast.ClassDef)
        names = [each.name for each in inside if isinstance(each, kinds)]
        told = wanted if wanted in names else names[0] if len(names) == 1 else "FUNCTION"
        return f"for yours in {file} say {module}:{told}"
    return ""


def load(knob: str, path: str) -> Callable[..., Any]:
    """The function that a knob's dotted path names; its module is imported.

    Raises:
        UsageError: there is no such module or function, or the module cannot be imported.
    """
    name, _, wanted = path.partition(":")
    _search_here()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "\0")
        raise UsageError(
            f"{knob} {path}: {name} cannot be imported"
            f" ({type(error).__name__}: {first_line(error)})",
            _mend(name) if missing else fix(error),
        ) from error
    found = getattr(module, wanted, None)
    if not callable(found):
        others = [n for n, value in vars(module).items() if callable(value)]
        raise UsageError(
            f"{knob} {path}: {name} has no function {wanted}{nearest(wanted, others)}",
            "mend the name",
        )
    imported([path])  # its files may be edited before anybody writes down what they were
    return found  # type: ignore[no-any-return]


def _mend(name: str) -> str:
    """What to do about a module that is not found."""
    package, *inner = name.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not inner:
        return where(package)
    if spec.submodule_search_locations is None and inner == ["py"]:
        return f"name the module, without .py: {package}:function"
    places = list(spec.submodule_search_locations or [])
    others = [f"{package}.{each.name}" for each in pkgutil.iter_modules(places)]
    return f"{package} is {places[0] if places else 'a file'}: mend the name{nearest(name, others)}"


def where(package: str) -> str:
    """What to do about a package of the user's that is not found."""
    if INSIDE.exists() and not os.environ.get(CONTAINER):  # Compose without make
        return f"mount it: docker compose run -v $PWD/{package}:/lockstep/{package}:ro …"
    if INSIDE.exists():
        return f"put {package} into the checkout, or name where it is: CODE=DIR/{package}"
    return (
        f"put {package} into this folder, or a link to it: ln -s DIR/{package} .; or run python -m"
        " train in the folder that holds it"
    )


def fix(error: BaseException) -> str:
    """What to do about an error of the user's code."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.split(".")[0]
        # Of one that is there, something inside is missing: that is no package to add.
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            return f"add {package} to requirements/common.in, then make lock (docs/EXTENDING.md)"
    return "mend it; --debug shows where"


def load_all(named: Mapping[str, str]) -> None:
    """Import the modules of all functions that are named, by knob.

    Raises:
        UsageError: as `load`.
    """
    for knob, path in named.items():
        load(knob, path)


def imported(paths: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each imported file that is the user's, by its module's name.

    Those are files below the working directory that are neither ours nor installed packages', and
    those of the packages that `paths` name, wherever they are. {} without paths.
    """
    packages = {path.partition(":")[0].split(".")[0] for path in paths}
    if not packages:
        return {}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        named = name.split(".")[0] in packages
        if (name in _SEEN and not (named and _SEEN[name] is None)) or name.endswith("main__"):
            continue
        own = path.is_file() and (named or _is_own(path.absolute()))
        _SEEN[name] = digest(path) if own else None
    return {name: found for name, found in sorted(_SEEN.items()) if found is not None}


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def changed(recorded: dict[str, str]) -> list[str]:
    """Names of recorded modules whose files are others now, or gone; nothing is imported."""
    _search_here()
    return [name for name, was in recorded.items() if _digest_of(name) != was]


def check_there(paths: Iterable[str]) -> None:
    """See that the packages that dotted paths name can be found; nothing is imported.

    Raises:
        UsageError: one of them cannot.
    """
    _search_here()
    for package in sorted({path.partition(":")[0].split(".")[0] for path in paths}):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"your own code is not found: {package}", where(package))


def _digest_of(name: str) -> str | None:
    """SHA-256 of the file that a module would be imported from; None where there is none."""
    top, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for count in range(1, len(inner) + 1):
            where = spec.submodule_search_locations if spec is not None else None
            if where is None:
                return None
            spec = PathFinder.find_spec(".".join([top, *inner[:count]]), where)
        return digest(Path(spec.origin)) if spec is not None and spec.origin else None
    except (ImportError, OSError, ValueError):
        return None


def _search_here() -> None:
    here = str(Path.cwd())
    if here not in sys.path:  # `lockstep` as a command, and torchrun's workers, have it not
        sys.path.insert(0, here)


def _is_own(path: Path) -> bool:
    """Whether an imported file is one of the working directory's, and no installed package's."""
    if {*_INSTALLED} & {*path.parts}:
        return False
    above = {*path.parents, *path.resolve().parents}
    if above & {HOME / each for each in _OURS} or Path(sysconfig.get_path("stdlib")) in above:
        return False
    here = {Path.cwd(), Path.cwd().resolve()}
    return bool(here & above)
