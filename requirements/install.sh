#!/bin/sh
# Install a lock into .venv (or $VENV), hashes checked:  requirements/install.sh cuda13|cuda12|dev
# Called by make when the lock has changed. Needs Python 3.11 or newer, or uv, and nothing else.
# What it says goes to the standard error: who called may have something to tell on the other.
set -eu
line=$1
venv=${VENV:-.venv}
lock=requirements/$line.txt

fail() { printf 'error: %s → %s\n' "$1" "$2" >&2; exit 6; }

[ ! -e "$venv" ] || [ -w "$venv" ] || fail "$lock is not what $venv holds, which may not be written" "rebuild the container; on a host: sudo rm -r $venv"
[ -f "$lock" ] || fail "there is no lock $lock" "make it: make lock CUDA=cuda13"

if ! "$venv"/bin/python -c '' 2>/dev/null; then
  rm -rf "$venv"
  echo "making $venv" >&2
  python=${PYTHON:-python3}
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    "$python" -m venv "$venv" >/dev/null 2>&1 || command -v uv >/dev/null 2>&1 ||
      fail "$python cannot make virtual environments" "apt install python3-venv, or install uv"
  elif ! command -v uv >/dev/null 2>&1; then
    fail "$python is not Python 3.11 or newer" "install one and set PYTHON=, or install uv"
  fi
  # uv brings a Python of its own where the machine has none that will do.
  [ -x "$venv"/bin/python ] || uv venv --quiet --python '>=3.11' "$venv"
fi

uv=$venv/bin/uv
if [ ! -x "$uv" ]; then
  if command -v uv >/dev/null 2>&1; then
    uv=uv
  else
    wanted=$(mktemp)
    trap 'rm -f "$wanted"' EXIT
    # The lock's own entry for uv, with its hashes.
    awk '/^uv==/ { on = 1 } on { print } on && !/\\$/ { exit }' requirements/cuda13.txt >"$wanted"
    "$venv"/bin/python -m pip install --quiet --require-hashes --requirement "$wanted"
  fi
fi

[ "$line" = dev ] || size=" (several GB the first time)"
echo "installing $lock into $venv${size:-}" >&2
VIRTUAL_ENV=$(cd "$venv" && pwd)
export UV_COMPILE_BYTECODE=1 VIRTUAL_ENV
shift
[ -t 2 ] || set -- --quiet  # bars are for terminals
if [ "$line" = dev ]; then
  "$uv" pip install "$@" --require-hashes --requirement "$lock"
else
  rm -f "$venv"/.lock-* "$venv"/.installed-*
  "$uv" pip sync "$@" --require-hashes "$lock"
  # The project itself, in place, packages that are still to come too: the command `lockstep`, and `python -m train` from anywhere.
  "$uv" pip install --quiet --no-deps --no-build-isolation \
    --config-settings editable_mode=compat --editable .
fi
