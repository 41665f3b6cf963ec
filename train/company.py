"""The processes of a training: how each fares, and who runs which lanes."""

from collections.abc import Iterator, Sequence

from torch import nn

from host import lanes, launcher, limits
from train.lanes.tree import LaneTree
from train.parts import Parts
from train.process import pace
from train.process.health import Health, complaints
from train.process.pace import Member
from train.record.resume import State

# Seconds and steps of training between looks at the machine.
_PERIOD, _STEPS = 10.0, 5


class Company:
    """This process among the others: all of them call this together."""

    def __init__(self, parts: Parts, state: State) -> None:
        self.parts, self.state = parts, state
        # The first steps start workers and choose kernels: looks begin after them.
        self._sampled: tuple[int, float] | None = None
        self._said: set[str] = set()  # kinds of complaints: each is made once
        self._members: list[Member] = []  # as the last look found them, since lanes were shared

    def look(self, health: Health) -> None:
        """Write down how each process fares, now and then, and say what is wrong with it."""
        parts, state, runtime = self.parts, self.state, self.parts.runtime
        now, last = (state.step, state.seconds), state.step == parts.steps
        if self._sampled is None:
            self._sampled = now
            parts.watch.read()
            return
        steps, seconds = now[0] - self._sampled[0], now[1] - self._sampled[1]
        # The main process's clock decides, for all are to look at the same steps.
        if not last and not runtime.any(runtime.main and seconds > _PERIOD and steps >= _STEPS):
            return
        self._sampled = now
        figures = health.take(seconds, steps, parts.watch.read())
        judged = seconds > _PERIOD / 2 and steps >= _STEPS
        wrong = complaints(figures, parts.config, limits.cpus_each()) if judged else {}
        own = pace.member(runtime.rank, runtime.device, figures, wrong, len(runtime.lanes))
        members = runtime.gathered(own)
        if parts.recorder is None:
            return
        parts.recorder.health(state.step, figures, [m.row() for m in members if len(members) > 1])
        compared = judged and parts.pipeline is None  # stages take what they take
        if compared:
            self._members = members
        for kind, text in _wrong(members, judged=compared, way=_way(parts)):
            if kind not in self._said:
                self._said.add(kind)
                parts.recorder.warn(state.step, text)

    def share(self) -> bool:
        """With SHARES=auto, share the lanes anew where steps would take less; whether it did."""
        parts, runtime = self.parts, self.parts.runtime
        if not runtime.balanced:
            return False
        better = runtime.from_main(pace.better(self._members) if self._members else None)
        if better is None:
            return False
        counts, seconds = better
        shares = lanes.ranges(counts)
        if parts.recorder:
            now = max(member.own for member in self._members)
            parts.recorder.shared(
                self.state.step,
                counts,
                f"lanes {lanes.said(shares)} instead of {lanes.said(runtime.shares)} from step"
                f" {self.state.step + 1} on: {1000 * seconds:.0f} ms instead of {1000 * now:.0f},"
                " about",
            )
        runtime.shares[:] = shares
        assert isinstance(parts.reducer, LaneTree)
        parts.reducer.share(runtime.shares)
        self._members, self._sampled = [], None
        return True


def _way(parts: Parts) -> str | None:
    """How one process's lanes could be given to another; None: they cannot be."""
    if parts.runtime.balanced:
        return lanes.MEASURED
    fixed = parts.config.reproducibility == "deterministic" or parts.sharding is not None
    synchronised = any(isinstance(m, nn.SyncBatchNorm) for m in parts.unwrapped.modules())
    return None if fixed or synchronised or launcher.elastic() is not None else "SHARES"


def _wrong(
    members: Sequence[Member], *, judged: bool, way: str | None
) -> Iterator[tuple[str, str]]:
    """What is wrong with the processes, and of which kind that is."""
    for member in members:
        for kind, text in member.complaints.items():
            yield kind, text if member.rank == 0 else f"{member.name}: {text}"
    several = judged and len(members) > 1
    slow = pace.complaint(members, way=way) if several else None
    if slow:
        yield "slow", slow
