"""Plain Accelerate, after its own example of checkpointing by steps."""

from accelerate import Accelerator
from accelerate.utils import set_seed
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
)
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
set_seed(0)
model = net()
loader = DataLoader(Pictures(), batch_size=BATCH // WORLD, shuffle=True)
optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

step, first_epoch, skip = 0, 0, 0
saved = sorted((HOME / "states").glob("step_*"), key=lambda p: int(p.name[5:]))
if saved:
    accelerator.load_state(saved[-1])
    step = int(saved[-1].name[5:])
    first_epoch, skip = divmod(step, len(loader))

for epoch in range(first_epoch, EPOCHS):
    model.train()
    active = (
        accelerator.skip_first_batches(loader, skip) if epoch == first_epoch and skip else loader
    )
    for batch in active:
        step += 1
        consumed(step, batch["number"].tolist())
        loss = functional.cross_entropy(model(batch["x"]), batch["labels"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            accelerator.save_state(HOME / "states" / f"step_{step}")
        step_done(step)
finished(accelerator.unwrap_model(model))
leave()
