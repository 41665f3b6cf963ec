"""What other trainers call our knobs, so that their words lead to ours.

The words are those of timm's train.py, torchvision's references, ultralytics, Lightning, the
Hugging Face Trainer and fastai, as their documentation lists them.
"""

from collections.abc import Collection, Mapping
from difflib import get_close_matches

_CALLED = {
    "accumulate": "lanes",
    "arch": "model.name",
    "backbone": "model.name",
    "batch": "batch_size",
    "bs": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "accumulate_grad_batches": "lanes",
    "grad_accum_steps": "lanes",
    "gradient_accumulation_steps": "lanes",
    "check_val_every_n_epoch": "eval.every",
    "eval_steps": "eval.every",
    "val_interval": "eval.every",
    "val_steps": "eval.every",
    "save_steps": "checkpoint.every",
    "save_period": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "clip_grad": "optim.clip",
    "clip_grad_norm": "optim.clip",
    "gradient_clip_val": "optim.clip",
    "max_grad_norm": "optim.clip",
    "cos_lr": "optim.schedule",
    "lr_scheduler": "optim.schedule",
    "lr_scheduler_type": "optim.schedule",
    "sched": "optim.schedule",
    "scheduler": "optim.schedule",
    "checkpoint_hist": "checkpoint.keep",
    "val_split": "data.holdout",
    "validation_split": "data.holdout",
    "b": "batch_size",
    "j": "data.workers",
    "data_dir": "data.root",
    "data_path": "data.root",
    "dataset_dir": "data.root",
    "train_dir": "data.root",
    "dataset": "data.source",
    "dataset_name": "data.source",
    "deterministic": "reproducibility",
    "hflip": "augment.flip",
    "fliplr": "augment.flip",
    "random_erasing": "augment.erasing",
    "reprob": "augment.erasing",
    "random_erase": "augment.erasing",
    "aa": "augment.policy",
    "augmentation": "augment.policy",
    "backbone_lr": "optim.layer_decay",
    "auto_augment": "augment.policy",
    "rand_augment": "augment.policy",
    "ra_magnitude": "augment.policy_strength",
    "color_jitter": "augment.brightness",
    "hsv_h": "augment.hue",
    "hsv_s": "augment.saturation",
    "hsv_v": "augment.brightness",
    "mixup_alpha": "augment.mixup",
    "cutmix_alpha": "augment.cutmix",
    "early_stopping_patience": "eval.patience",
    "early_stop": "eval.patience",
    "model_ema": "optim.ema",
    "model_ema_decay": "optim.ema",
    "ema_decay": "optim.ema",
    "cpu_offload": "optim.offload",
    "offload_optimizer": "optim.offload",
    "offload_optimizer_device": "optim.offload",
    "scale": "augment.crop",
    "image_size": "data.size",
    "img_size": "data.size",
    "imgsz": "data.size",
    "input_size": "data.size",
    "resolution": "data.size",
    "train_crop_size": "data.size",
    "log_interval": "log.every",
    "print_freq": "log.every",
    "val_resize_size": "eval.size",
    "val_crop_size": "eval.crop",
    "use_deterministic_algorithms": "reproducibility",
    "bce_loss": "optim.loss",
    "decay_rate": "optim.gamma",
    "lr_gamma": "optim.gamma",
    "experiment": "name",
    "run_name": "name",
    "warmup_ratio": "optim.warmup",
    "eval_strategy": "eval.every",
    "evaluation_strategy": "eval.every",
    "default_root_dir": "run",
    "lr_max": "optim.lr",
    "log_every_n_steps": "log.every",
    "logging_steps": "log.every",
    "learning_rate": "optim.lr",
    "lr0": "optim.lr",
    "base_lr": "optim.lr",
    "lrf": "optim.final",
    "min_lr": "optim.final",
    "iterations": "max_steps",
    "iters": "max_steps",
    "max_iters": "max_steps",
    "num_train_steps": "max_steps",
    "steps": "max_steps",
    "total_steps": "max_steps",
    "train_steps": "max_steps",
    "max_epochs": "epochs",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "drop_path_rate": "model.drop_path",
    "freeze_layers": "model.freeze",
    "load_checkpoint": "model.weights",
    "model_path": "model.weights",
    "net": "model.name",
    "num_workers": "data.workers",
    "dataloader_num_workers": "data.workers",
    "opt": "optim.name",
    "optimizer": "optim.name",
    "pretrained": "model.weights",
    "initial_checkpoint": "model.weights",
    "prefetch_factor": "data.prefetch",
    "smoothing": "optim.label_smoothing",
    "grad_checkpointing": "model.activation_checkpointing",
    "gradient_checkpointing": "model.activation_checkpointing",
    "torch_compile": "model.compile",
    "torchcompile": "model.compile",
    "use_wandb": "wandb.mode",
    "num_warmup_steps": "optim.warmup",
    "warmup_steps": "optim.warmup",
    "lr_warmup_epochs": "optim.warmup_epochs",
    "wd": "optim.weight_decay",
    "ckpt": "resume",
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "logdir": "run",
    "log_dir": "run",
    "out_dir": "run",
    "output": "run",
    "output_dir": "run",
    "save_dir": "run",
}
# What they count in other units: whoever copies the value would train something else.
_UNITS = {
    "check_val_every_n_epoch": "in steps",
    "eval_strategy": "in steps",
    "evaluation_strategy": "in steps",
    "warmup_ratio": "in steps",
    "bce_loss": "bce",
    "lrf": "as a share of the peak",
    "min_lr": "as a share of the peak",
    "aa": "randaugment, trivialaugment or autoaugment",
    "auto_augment": "randaugment, trivialaugment or autoaugment",
    "color_jitter": "and contrast, saturation, hue",
    "early_stopping_patience": "in evaluations",
    "early_stop": "in evaluations",
    "model_ema": "the decay",
    "ra_magnitude": "from 0 to 30",
    "save_period": "in steps",
    "val_interval": "in steps",
    "per_device_train_batch_size": "over all processes",
}
# Where it runs is no knob of an experiment: make and the launcher are told.
_ELSEWHERE = {
    "accelerator": "GPUS=",
    "amp": "PRECISION=",
    "bf16": "PRECISION=bf16",
    "fp16": "PRECISION=fp16",
    "half": "PRECISION=fp16",
    "mixed_precision": "PRECISION=",
    "precision": "PRECISION=",
    "device": "GPUS=",
    "devices": "GPUS=",
    "gpu": "GPUS=",
    "gpus": "GPUS=",
    "cpu": "CPUS=",
    "cpus": "CPUS=",
    "nproc_per_node": "GPUS=",
    "num_gpus": "GPUS=",
    "num_processes": "GPUS=",
    "world_size": "GPUS=",
}

# How like a name a misspelt one is, from 0 to 1: ours; and those of other trainers, of which
# there are so many that at 0.75 `interpolation` is `iterations`.
_LIKE, _LIKE_OTHERS = 0.75, 0.8

_OTHERWISE = {word: f"did you mean make's {name}?" for word, name in _ELSEWHERE.items()}
_OTHERWISE |= dict.fromkeys(
    ("test_only", "eval_only", "evaluate", "validate", "do_eval"),
    "a run's weights are measured by `make eval`",
)
_OTHERWISE |= dict.fromkeys(("deepspeed", "fsdp", "strategy"), "did you mean make's ACCELERATE=?")
_OTHERWISE["num_nodes"] = _OTHERWISE["nnodes"] = "did you mean make's NODES=?"
_OTHERWISE["num_classes"] = "the data says how many classes there are"
_OTHERWISE["drop_last"] = "no picture is dropped: batches run on from one epoch into the next"
_OTHERWISE |= dict.fromkeys(("drop", "drop_rate", "dropout"), "dropout is in a model of your own")
_OTHERWISE["shuffle"] = "pictures to train on are always shuffled"
_OTHERWISE["tensorboard"] = "TensorBoard's files are always written"
_OTHERWISE["sync_bn"] = "batch norm sees one lane, on any number of GPUs: did you mean --lanes?"
_OTHERWISE["load_best_model_at_end"] = "the best weights of a run are in its checkpoints/best"


def meant(word: str, known: Collection[str]) -> str:
    """'; did you mean …?' for the known name that a word stands for, or '' where none does.

    Args:
        word: a flag or a key, as it was given.
        known: names, `--` in front of them or not.
    """
    names = {name.lstrip("-"): name for name in known}
    plain = word.split("=", maxsplit=1)[0].lstrip("-").replace("-", "_").lower()
    last = plain.rsplit(".", 1)[-1]
    if plain in names:
        return _asked(names[plain])
    # The end of a name: `lr` is optim.lr, and `size` is data.size.
    ends = [name for name in names if name.rsplit(".", 1)[-1] == last]
    for each in (plain, last):
        if each in _OTHERWISE and not ends:
            return f"; {_OTHERWISE[each]}"
        if _CALLED.get(each) in names:
            unit = f" ({_UNITS[each]})" if each in _UNITS else ""
            return _asked(names[_CALLED[each]] + unit)
    if "." in plain:
        whole = get_close_matches(plain, names, n=1, cutoff=0.8)
        if whole:
            return _asked(names[whole[0]])
    if ends:
        return _asked(*(names[name] for name in ends[:3]))
    return _misspelt(plain, last, names)


def _misspelt(plain: str, last: str, names: Mapping[str, str]) -> str:
    # Whole or by its end, ours or another trainer's.
    ours = {name.rsplit(".", 1)[-1]: name for name in names} | {name: name for name in names}
    others = {other: name for other, name in _CALLED.items() if name in names}
    for near, like in ((ours, _LIKE), (others, _LIKE_OTHERS)):
        for each in (plain, last):
            close = get_close_matches(each, near, n=1, cutoff=like)
            if close:
                return _asked(names[near[close[0]]])
    return ""


def _asked(*names: str) -> str:
    return f"; did you mean {' or '.join(names)}?"
