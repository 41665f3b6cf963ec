"""Hugging Face's Trainer, resumed with resume_from_checkpoint=True."""

from common import (
    BATCH,
    EPOCHS,
    HOME,
    SAVE_EVERY,
    WORLD,
    Pictures,
    consumed,
    finished,
    leave,
    net,
    step_done,
)  # fmt: skip
from torch import nn
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x, labels, number):
        consumed(trainer.state.global_step + 1, number.tolist())
        logits = self.inner(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        step_done(state.global_step)


out = HOME / "out"
arguments = TrainingArguments(
    output_dir=str(out), per_device_train_batch_size=BATCH // WORLD, num_train_epochs=EPOCHS,
    learning_rate=0.05, optim="sgd", lr_scheduler_type="constant", save_strategy="steps",
    save_steps=SAVE_EVERY, seed=0, report_to=[], use_cpu=True, disable_tqdm=True,
    logging_steps=1000, remove_unused_columns=False, full_determinism=True,
)  # fmt: skip
trainer = Trainer(model=Net(), args=arguments, train_dataset=Pictures(), callbacks=[Kill()])
trainer.train(resume_from_checkpoint=True if list(out.glob("checkpoint-*")) else None)
finished(trainer.accelerator.unwrap_model(trainer.model))
leave()
