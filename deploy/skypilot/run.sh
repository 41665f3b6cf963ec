#!/usr/bin/env bash
# One node's part of train.yaml: fetch the run from the bucket, go on with it, and keep the bucket's copy
# up to date. A mounted bucket is no disk to train on: it has no symbolic links and no locks.
#
#     CONFIG=configs/cifar10.yaml RUN=runs/cifar10 deploy/skypilot/run.sh --optim.lr 0.2
set -uo pipefail

bucket=${BUCKET:-/bucket}/$RUN
every=${KEEP_EVERY:-60} # seconds
first=
[[ ${SKYPILOT_NODE_RANK:-0} == 0 ]] && first=yes

# What is small is written anew. A checkpoint never changes; one that is there in part only is found out
# by its digests, and the one before it is taken. metrics.jsonl may be ahead of them, and not behind.
keep() {
  [[ -d $RUN/checkpoints ]] || return 0
  local how=(rsync --recursive --inplace --no-links --delete --quiet)
  mkdir -p "$bucket/checkpoints"
  {
    "${how[@]}" --exclude /checkpoints "$RUN/" "$bucket/"
    "${how[@]}" --size-only "$RUN/checkpoints/" "$bucket/checkpoints/"
    "${how[@]}" --exclude /checkpoints "$RUN/" "$bucket/"
  } 2> >(grep -v 'non-regular\|vanished' >&2)
}

if [[ -n $first && -d $bucket && ! -d $RUN ]]; then
  # Under another name until it is whole: a part of a run would be taken for the run.
  rm -rf "$RUN.part"
  mkdir -p "$RUN.part"
  rsync --recursive "$bucket/" "$RUN.part/" || exit 6
  mv "$RUN.part" "$RUN"
fi

if [[ ${DOCTOR:-1} != 0 ]]; then ENGINE=local .venv/bin/python -m doctor --quick || exit; fi
.venv/bin/python -m train.launch fit --config "$CONFIG" --run "$RUN" --resume "$@" &
training=$!
trap 'kill -TERM "$training"' TERM INT

# bash heeds a signal while it waits for what runs beside it, and not before a command of its own ends.
copy=
for ((second = 1; ; second++)); do
  kill -0 "$training" 2>/dev/null || break
  sleep 1 &
  wait $!
  if [[ -n $first && $((second % every)) == 0 ]]; then
    [[ -z $copy ]] || wait "$copy"
    keep &
    copy=$!
    wait "$copy"
  fi
done
wait "$training"
code=$?
if [[ -n $first ]]; then
  [[ -z $copy ]] || wait "$copy"
  keep
fi
exit "$code"
