"""How many loader processes keep up with the steps, and how far ahead they should work."""

from host import limits
from train.config import Config
from train.tuning.trials import Row, Trials

SAME = 0.95
"""What is measured is as good as the best where it is this near to it."""
# Loader processes take CPU and memory from others: they must be worth more than seconds of chance.
_WORTH = 0.9


def workers(config: Config, trials: Trials) -> Row:
    """Loader processes and how far they work ahead: the fewest that keep up."""
    # Once for the caches of the system, and not looked at.
    pairs = [(count, config.data.prefetch) for count in (0, *counts(config, trials))]
    rows = [n for n in trials.run(config, "workers", pairs=pairs) if "workers" in n][1:]
    best = enough(rows)
    if best["workers"] and best["data_share"] > 0.05:
        more = [(best["workers"], ahead) for ahead in (4, 8) if ahead > config.data.prefetch]
        rows += [n for n in trials.run(config, "workers", pairs=more) if "workers" in n]
        best = enough(rows)
    now = [row for row in rows if row["workers"] == config.data.workers]
    before = now[0] if now else rows[0]
    return {"tried": rows, "best": best, "before": before, "room": _room(config, trials)}


def counts(config: Config, trials: Trials) -> list[int]:
    """The numbers of loader processes to try, for each training process."""
    room = _room(config, trials)
    powers = {2**n for n in range(room.bit_length())}
    return sorted(count for count in {0, 1, 2, room, *powers} if count <= max(2, room))


def _room(config: Config, trials: Trials) -> int:
    return max(1, limits.cpus() // trials.plan(config).processes)


def enough(rows: list[Row]) -> Row:
    """The fewest workers, and the least ahead, that are as fast as the fastest."""
    most = max(row["samples_per_second"] for row in rows)
    good = [row for row in rows if row["samples_per_second"] >= _WORTH * most]
    return min(good, key=lambda row: (row["workers"], row["prefetch"]))


def about(found: Row) -> str:
    """What to say of it."""
    best, before = found["best"], found["before"]
    then = f" ({100 * before['data_share']:.1f} % with {before['workers']})"
    return (
        f"data.workers: {best['workers']}, prefetch: {best['prefetch']}:"
        f" {100 * best['data_share']:.1f} % of step time waits for data"
        f"{then if best['workers'] != before['workers'] else ''}, the same bits"
    )
