"""Words of other trainers, and misspelt ones: the nearest word of ours is named."""

import subprocess
import sys

import pytest
from conftest import ROOT

from host.errors import UsageError
from train import cli
from train.experiment import meant, parse

# As timm, torchvision, ultralytics, Lightning, the Hugging Face Trainer and fastai have them.
ALIASES = {
    "--lr": "--optim.lr",
    "--learning_rate": "--optim.lr",
    "--learning-rate": "--optim.lr",
    "--batch": "--batch_size",
    "--batch-size": "--batch_size",
    "--per_device_train_batch_size": "--batch_size (over all processes)",
    "--workers": "--data.workers",
    "--num-workers": "--data.workers",
    "--imgsz": "--data.size",
    "--img-size": "--data.size",
    "--num_train_epochs": "--epochs",
    "--max_epochs": "--epochs",
    "--arch": "--model.name",
    "--opt": "--optim.name",
    "--wd": "--optim.weight_decay",
    "--weight-decay": "--optim.weight_decay",
    "--momentum": "--optim.momentum",
    "--warmup_epochs": "--optim.warmup_epochs",
    "--lr_scheduler": "--optim.schedule",
    "--mixup": "--augment.mixup",
    "--patience": "--eval.patience",
    "--early_stopping_patience": "--eval.patience (in evaluations)",
    "--model-ema": "--optim.ema (the decay)",
    "--ema": "--optim.ema",
    "--aa": "--augment.policy (randaugment, trivialaugment or autoaugment)",
    "--reprob": "--augment.erasing",
    "--smoothing": "--optim.label_smoothing",
    "--label-smoothing": "--optim.label_smoothing",
    "--gradient_clip_val": "--optim.clip",
    "--pretrained": "--model.weights",
    "--output_dir": "--run",
    "--gradient_accumulation_steps": "--lanes",
    "--gpus": "GPUS=",
    "--amp": "PRECISION=",
    "--device": "GPUS=",
    "--checkpoint-hist": "--checkpoint.keep",
    "--print-freq": "--log.every",
    "--val-resize-size": "--eval.size",
    "--use-deterministic-algorithms": "--reproducibility",
    "--bce-loss": "--optim.loss (bce)",
    "--decay-rate": "--optim.gamma",
    "--experiment": "--name",
    "--warmup_ratio": "--optim.warmup (in steps)",
    "--eval_strategy": "--eval.every (in steps)",
    "--default_root_dir": "--run",
    "--lr_max": "--optim.lr",
    "--val-split": "--data.holdout",
    "-b": "--batch_size",
    "-j": "--data.workers",
}
KNOBS = {
    "--optim.lrr": "--optim.lr",
    "--optm.lr": "--optim.lr",
    "--epoch": "--epochs",
    "--epcohs": "--epochs",
    "--batchsize": "--batch_size",
    "--bacth_size": "--batch_size",
    "--warmpu": "--optim.warmup",
    "--modle.name": "--model.name",
    "--data.worker": "--data.workers",
    "--wrokers": "--data.workers",
    "--data.rot": "--data.root",
    "--sed": "--seed",
    "--max_step": "--max_steps",
    "--resum": "--resume",
    "--reproducability": "--reproducibility",
    "--optim.weigth_decay": "--optim.weight_decay",
    "--checkpoint.evry": "--checkpoint.every",
    "--augment.flp": "--augment.flip",
}
VERBS = {"fitt": "fit", "evalute": "evaluate", "reproduc": "reproduce", "tun": "tune"}
VARIABLES = {"GPU=2": "GPUS", "CONFG=x": "CONFIG", "PRECISON=no": "PRECISION", "ARG=x": "ARGS"}
TARGETS = {
    "trian": "train", "tests": "test", "docter": "doctor", "reprodce": "reproduce",
    "tensorbord": "tensorboard", "evaluate": "eval",
}  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), {**ALIASES, **KNOBS}.items())
def test_a_flag(given, wanted) -> None:
    with pytest.raises(UsageError) as refused:
        cli.parse(["fit", given, "1"])
    assert refused.value.problem.endswith(f"{wanted}?")


@pytest.mark.parametrize(
    ("given", "said"),
    [("--test-only", "make eval"), ("--load_best_model_at_end", "checkpoints/best")],
)
def test_what_is_no_knob_here(given, said) -> None:
    with pytest.raises(UsageError, match=said):
        cli.parse(["fit", given, "1"])


@pytest.mark.parametrize("given", [["--model", "resnet18"], ["--data=x"], ["--log", "1"]])
def test_a_group_in_the_place_of_a_knob(given) -> None:
    name = given[0].split("=")[0]
    with pytest.raises(
        UsageError, match=f"{name} is a group of knobs → set one of them: {name}\\."
    ):
        cli.parse(["fit", *given])
    with pytest.raises(UsageError, match=f"{name[2:]} is a group of knobs, and not 'x'"):
        parse({name[2:]: "x"}, "x.yaml")


@pytest.mark.parametrize(("given", "wanted"), VERBS.items())
def test_a_verb(given, wanted) -> None:
    with pytest.raises(UsageError, match=f"no verb {given}; did you mean {wanted}\\?"):
        cli.parse([given])


@pytest.mark.parametrize(("given", "wanted"), {**VARIABLES, **TARGETS}.items())
def test_a_word_of_make(given, wanted) -> None:
    done = subprocess.run(
        ["make", *(["help"] * ("=" in given)), given, f"PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"did you mean {wanted}?" in done.stderr


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"lr": 0.1}, "optim.lr"),
        ({"optim": {"learning_rate": 0.1}}, "optim.lr"),
        ({"optimizer": {"name": "sgd"}}, "optim.name or optim"),
        ({"data": {"batch": 3}}, "batch_size"),
        ({"max_epochs": 3}, "epochs"),
    ],
)
def test_a_key_of_a_file(given, wanted) -> None:
    with pytest.raises(UsageError) as refused:
        parse(given, "x.yaml")
    assert "did you mean" in refused.value.problem
    assert wanted.split()[0] in refused.value.problem


def test_what_is_like_nothing_is_not_guessed() -> None:
    for word in ("--zzzzzz", "--", "--quux.corge", "--x"):
        assert meant(word, ["--optim.lr", "--epochs"]) == ""


def test_each_of_several_is_named() -> None:
    words = ["fit", "--optim.lrr", "0.1", "--optim.shedule", "linear"]
    with pytest.raises(UsageError) as told:
        cli.parse(words)
    for name, meant_ in (("lrr", "lr"), ("shedule", "schedule")):
        assert f"unknown argument --optim.{name}; did you mean --optim.{meant_}?" in str(told.value)
