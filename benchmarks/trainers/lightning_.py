"""Lightning's Trainer with a ModelCheckpoint, resumed with ckpt_path."""

import lightning
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
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def training_step(self, batch, _index):
        step_done(self.global_step)
        consumed(self.global_step + 1, batch["number"].tolist())
        return functional.cross_entropy(self.inner(batch["x"]), batch["labels"])

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.05, momentum=0.9)


lightning.seed_everything(0, workers=True)
states = HOME / "states"
saved = sorted(states.glob("*.ckpt"), key=lambda p: int(p.stem.rsplit("=", 1)[1]))
trainer = lightning.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto",
    deterministic=True, logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[
        ModelCheckpoint(states, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    ],
)  # fmt: skip
module = Module()
loader = DataLoader(Pictures(), batch_size=BATCH // WORLD, shuffle=True)
trainer.fit(module, loader, ckpt_path=str(saved[-1]) if saved else None)
finished(module)
leave()
