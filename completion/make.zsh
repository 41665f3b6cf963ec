# Tab after make, in a checkout of Lockstep: targets, variables, experiments, runs, knobs.
# Put `source DIR/completion/make.zsh` into ~/.zshrc, after compinit. Elsewhere make completes as before.

_lockstep_complete=${${(%):-%x}:A:h:h}/host/complete.py

_lockstep_make() {
  if [[ ! -f Makefile || ! -f configs/schema.json || ! -d train/verbs ]]; then
    _make "$@"
    return
  fi
  # The words as zsh has them, each in quotes. What is typed of the last stays as it is: the variable,
  # and knobs before this one.
  local typed="${(j: :)${(@qq)words[1,CURRENT-1]}} ${(qq)${(Q)PREFIX}}" line texts=() about=()
  compset -P '*[= ]'
  for line in ${(f)"$(python3 -I $_lockstep_complete "$typed" "$PREFIX" 2>/dev/null)"}; do
    texts+=("${line%%$'\t'*}")
    about+=("${${line/$'\t'/  }[1,COLUMNS-1]}")
  done
  (( $#texts )) || return 1
  # More follows a variable's name, a knob and a folder.
  if [[ $#texts == 1 && $texts[1] == *[=/] ]]; then
    compadd -Q -S '' -l -d about -a texts
  else
    compadd -Q -l -d about -a texts
  fi
}

compdef _lockstep_make make
