"""The largest micro-batch that fits, and the lanes that follow from it."""

from pathlib import Path

from host.errors import HostError, OutOfMemory, UsageError
from host.lanes import can_share, cutting
from train.config import Config
from train.tuning import pictures
from train.tuning.search import Search
from train.tuning.trials import Row, Trials


def largest(config: Config, trials: Trials, folder: Path) -> Row:
    """The largest micro-batch that fits, and what was measured on the way."""
    search = Search()
    rows: dict[int, Row] = {}
    about: Row = {}
    while True:
        state = {"low": search.low, "high": search.high, "most": search.most}
        ended = trials.attempt(config, "batch", search=state)
        if ended.error is not None and not isinstance(ended.error, OutOfMemory):
            raise ended.error
        over = ended.error is None
        for row in ended.rows:
            if "world" in row or "answers" in row:
                about |= row
            if "world" in row:
                # More is no batch of this data.
                search.most = max(1, row["images"] // row["world"])
            elif row.get("fits"):
                search.fits(row["size"])
                rows[row["size"]] = row
            elif "fits" in row:
                search.fails(row["size"])
        tried = [row["trying"] for row in ended.rows if "trying" in row]
        done = {row["size"] for row in ended.rows if "fits" in row}
        if not over and tried and tried[-1] not in done:
            print(f"  micro-batch {tried[-1]:>5}  killed for lack of memory")
            search.fails(tried[-1])
        elif not over:
            raise HostError(
                "not even the model fits into memory",
                "use a smaller one, or `make doctor` to see why",
            )
        if search.next() is None:
            break
    if not search.low:
        raise HostError(
            "not even a micro-batch of 1 fits into memory",
            "use a smaller model or image, PRECISION=bf16, or a larger device",
        )
    pictures.batch(folder / "batch.png", list(rows.values()), search.low)
    return {"largest": search.low, "limit": search.high, "tried": list(rows.values()), **about}


def lanes(config: Config, found: Row, said: list[str]) -> Config:
    """Lanes that fit; others than those of the experiment only where it must be."""
    largest, world = found["largest"], found["world"]
    said.append(
        f"the largest micro-batch is {largest}, on each of {world} process{'es' * (world > 1)};"
        f" the experiment's is {config.micro_batch} ({config.lanes} lanes)"
    )
    few = fewest(config, largest, world)
    if few is None:
        raise UsageError(
            f"no number of lanes cuts batch_size {config.batch_size} into micro-batches of"
            f" {largest} or fewer for {world} processes",
            "choose another batch_size: a power of two has the most divisors",
        )
    if config.micro_batch > largest:
        said.append(f"lanes: {few} instead, for that does not fit: other bits than before")
        return config.model_copy(update={"lanes": few})
    if few < config.lanes:
        near = {int(row["size"]): row["samples_per_second"] for row in found["tried"]}
        now, then = (_at(near, size) for size in (config.micro_batch, config.batch_size // few))
        said.append(
            f"lanes: {few} would do as well, at {then / now:.2f} × the speed; other bits, and"
            " batch norm would see more samples at once"
        )
    return config


def fewest(config: Config, largest: int, world: int) -> int | None:
    """The fewest lanes that fit, and that the processes can share."""
    counts = cutting(config.batch_size, power_of_two=config.lockstep)
    level = config.reproducibility
    fit = [n for n in counts if can_share(n, world, level) and config.batch_size // n <= largest]
    return min(fit, default=None)


def _at(speeds: dict[int, float], size: int) -> float:
    """Speed at a size, from the sizes that were measured: between two of them, in proportion."""
    below = max((s for s in speeds if s <= size), default=min(speeds))
    above = min((s for s in speeds if s >= size), default=max(speeds))
    if above == below:
        return speeds[below]
    share = (size - below) / (above - below)
    return speeds[below] + share * (speeds[above] - speeds[below])
