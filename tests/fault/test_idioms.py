"""Models as people write them: the same bits, however many processes and kills, or one line.

The whole table, with torchvision's families, takes half an hour: benchmarks/idioms.py.
"""

import signal

import pytest
from fault import harness

WORDS = [
    "fit", "--config", "configs/digits.yaml", "--numerics", "native", "--batch_size", 32,
    "--lanes", 4, "--epochs", 0.2, "--checkpoint.every", 2, "--eval.every", 4,
    "--log.every", 1, "--optim.lr", 0.02,
]  # fmt: skip
# One for each thing that the lanes, the seeds, the exchange or the checkpoints have to do for it.
SAME = (
    "checkpoint_shared_block_reentrant",
    "custom_bn_reassigned_buffers",
    "frozen_bn_by_train_override",
    "generator_in_a_helper_object",
    "hebbian_trace_updates_in_eval_too",
    "lora_merged_in_eval",
    "maxnorm_renorm_weight_data_in_forward",
    "moco_queue_with_pointer",
    "params_float64_bf16_complex64_mixed",
    "stochastic_depth_over_spectral_norm",
    "swa_averaged_model_child",
)
REFUSED = {
    "alternating_branch_every_other_call": "the model remembers something in",
    "buffers_alias_same_memory": "mean and stats share memory",
    "scale_if_distributed": "as another process",
    "sync_batchnorm": "is a SyncBatchNorm",
    "threads_set_in_forward": "the model sets num_threads to 2",
    "world_group_all_reduce": "the model talks to other processes",
}

pytestmark = pytest.mark.slow


def train(home, name, run, world, strikes=None):
    words = [*WORDS, "--model.name", name, "--run", home / run, "--resume"]
    attempt = harness.start(home / f"log-{len(list(home.iterdir()))}", world, words, strikes)
    codes = attempt.wait(120)
    attempt.end()
    return codes, attempt.output()


@pytest.mark.parametrize("name", SAME)
def test_the_same_bits_on_four_processes_and_after_a_kill(tmp_path, name) -> None:
    codes, said = train(tmp_path, name, "one", 1)
    assert codes == [0], said
    codes, said = train(tmp_path, name, "four", 4)
    assert codes == [0] * 4, said
    harness.assert_same_run(tmp_path / "four", tmp_path / "one")
    kill = {0: {"at": "lane", "count": 18, "signal": signal.SIGKILL}}
    codes, said = train(tmp_path, name, "killed", 1, kill)
    assert codes == [-signal.SIGKILL], said
    codes, said = train(tmp_path, name, "killed", 2)
    assert codes == [0, 0], said
    harness.assert_same_run(tmp_path / "killed", tmp_path / "one")


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_on_any_number(tmp_path, name, world) -> None:
    codes, said = train(tmp_path, name, "refused", world)
    assert codes == [2] * world, said
    [line] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert REFUSED[name] in line
    assert "Traceback" not in said
    assert not (tmp_path / "refused" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("embedding_sparse_tokens", "the gradient of emb.weight is sparse"),
        ("extra_state_python_history", "_extra_state, which is no tensor"),
        ("built_on_first_forward", "fc.bias appears in a forward pass"),
        ("squeeze_of_everything", "a tensor of (10,) for 1 images, and logits of (1, 10) are"),
    ],
)
def test_what_cannot_be_trained_or_saved_is_refused_at_fast_too(tmp_path, name, says) -> None:
    """Before the first step, and not after the last one."""
    words = [*WORDS, "--reproducibility", "fast", "--model.name", name, "--run", tmp_path / "run"]
    attempt = harness.start(tmp_path / "log", 1, words)
    assert attempt.wait(60) == [2], attempt.output()
    assert says in attempt.output()
    assert len(attempt.said("err").splitlines()) == 1
