# shellcheck shell=bash
# Tab after make, in a checkout of Lockstep: targets, variables, experiments, runs, knobs.
# Put `source DIR/completion/make.bash` into ~/.bashrc. Elsewhere make completes as it did before.

_lockstep_complete=$(cd "${BASH_SOURCE[0]%/*}/.." >/dev/null && pwd)/host/complete.py
_lockstep_function() { complete -p "$@" 2>/dev/null | sed -n 's/.*-F \([^ ]*\).*/\1/p'; }
# bash-completion loads what it knows of a command when that is asked for first.
if ! complete -p make >/dev/null 2>&1; then
  _lockstep_loader=$(_lockstep_function -D)
  [[ -z $_lockstep_loader ]] || "$_lockstep_loader" make
fi
if [[ $(_lockstep_function make) != _lockstep_make ]]; then _lockstep_before=$(_lockstep_function make); fi

_lockstep_make() {
  COMPREPLY=()
  if [[ ! -f Makefile || ! -f configs/schema.json || ! -d train/verbs ]]; then
    if [[ -n $_lockstep_before ]]; then "$_lockstep_before" "$@"; fi
    return
  fi
  # What bash replaces: it takes =, : and quotes for the beginning of a word.
  local end=$2 text
  while IFS=$'\t' read -r text _; do
    COMPREPLY+=("$text")
  done < <(python3 -I "$_lockstep_complete" "${COMP_LINE:0:COMP_POINT}" "$end" 2>/dev/null)
  [[ ${#COMPREPLY[@]} -eq 1 ]] || return 0
  # More follows a variable's name and a folder, and in quotes each flag and its value. Bash would close
  # a quote after the only candidate: of two, it inserts what both begin with.
  local only=${COMPREPLY[0]} more=
  if [[ $only == *[=/] ]]; then
    compopt -o nospace
    more=$only
  elif [[ $only == *--* ]]; then
    more="$only "
  fi
  if [[ $more && ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]]; then COMPREPLY=("$more" "$more…"); fi
}

complete -o default -F _lockstep_make make
