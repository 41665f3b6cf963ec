"""SIGKILL at random moments, then --resume: the same bits, each sample once, never without a save.

FAULT_KILLS and FAULT_SCHEDULES say how many; `make test-fault` asks for 200 and 50.
"""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from fault import harness
from fault.harness import (
    FSDP,
    SIZE,
    WORDS,
    Attempt,
    assert_same_run,
    consumed,
    expected,
    finish,
    start,
    whole_checkpoint,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

KILLS = int(os.environ.get("FAULT_KILLS", "8"))
SCHEDULES = int(os.environ.get("FAULT_SCHEDULES", "3"))
SEED = int(os.environ.get("FAULT_SEED", "0"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupted."""
    home = tmp_path_factory.mktemp("reference")
    run = finish(home, WORDS)
    assert consumed([home / "log"]) == expected(0, SIZE, 2 * SIZE)
    return run


def kill(attempt: Attempt, kind: str, chance: random.Random) -> None:
    """At a random moment, kill what `kind` names."""
    time.sleep(chance.uniform(0.3, 2.2))
    victims: list[psutil.Process] = []
    if kind == "loader":
        victims = attempt.loaders()[:1]
    elif kind == "rank":
        victims = [psutil.Process(chance.choice(attempt.ranks).pid)] if attempt.alive() else []
    elif kind == "machine":
        victims = [psutil.Process(r.pid) for r in attempt.ranks if r.is_alive()]
    for victim in victims:
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue


@pytest.mark.parametrize("sharded", [False, True], ids=["of-any-kind", "sharded-saves"])
def test_kills_at_random_moments(tmp_path, reference, sharded) -> None:
    """Most of them while files are written; the weights of shards and stages by both processes."""
    chance = random.Random(SEED + sharded)
    kills = runs = 0
    tally: dict[str, int] = {}
    while kills < KILLS:
        home, attempts, newest = tmp_path / str(runs), [], None
        runs += 1
        while True:
            # A run that is killed often enough is let go on to its end.
            kind = chance.choice(["rank", "machine", "loader", "file", "file"])
            kind = kind if len(attempts) < 6 else "none"
            world, strikes = 2 if sharded else chance.choice([1, 2, 2]), {}
            spread = sharded or (world == 2 and chance.random() < 0.5)
            way = chance.choice([FSDP, STAGES])
            if kind == "file":
                # A save is about fifteen file operations; the run makes nine of them.
                victim = chance.randrange(world) if spread else 0
                strikes = {victim: {"at": "file", "count": chance.randint(1, 90), "signal": 9}}
            workers = 2 if kind == "loader" else 0
            told = {rank: dict(way) for rank in range(world * spread)}
            words = [*WORDS, "--data.workers", workers, "--run", home / "run", "--resume"]
            attempts.append(home / str(len(attempts)))
            attempt = start(attempts[-1], world, words, strikes, told)
            if kind not in ("none", "file"):
                kill(attempt, kind, chance)
            codes = attempt.wait(90)  # one that nothing strikes trains to its end
            if None in codes and not attempt.said("out"):
                # One died before they met: it is for a launcher, which there is none here, to end
                # those that wait for it. (torch may have warned of the store that is gone.)
                attempt.end()
                codes = attempt.wait(0)
            assert None not in codes, f"{kind}: still there: {attempt.output()}"
            assert "Traceback" not in attempt.output(), attempt.output()
            if codes == [0] * world:
                break
            # Whoever was not killed itself says that another process is gone, or was done.
            assert set(codes) <= {-signal.SIGKILL, 6, 0}, (kind, codes, attempt.output())
            kills += 1
            name = f"{kind}{', shards' * (spread and way is FSDP)}"
            name += ", stages" * (spread and way is STAGES)
            tally[name] = tally.get(name, 0) + 1
            left, before = whole_checkpoint(home / "run"), newest
            assert before is None or (left is not None and left >= before)
            newest = left
        assert_same_run(home / "run", reference)
        assert consumed(attempts) == expected(0, SIZE, 2 * SIZE)
    print(f"{kills} kills in {runs} runs: {tally}")


STAGES = {"STAGES": "2"}
# Of eight lanes for each process, beside even ones.
SHARES = {2: ["", "5,3", "1,7"], 3: ["", "6,1,1", "2,5,1"], 4: ["", "3,1,3,1"]}

CASES: dict[str, list[object]] = {
    "convnet": [],
    "dropout": ["--model.name", "dropnet"],
    "adamw": ["--optim.name", "adamw", "--optim.lr", 0.002, "--optim.clip", 0.5],
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("references")
    return {name: finish(home / name, [*WORDS, *knobs]) for name, knobs in CASES.items()}


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_elastic_schedules(tmp_path, references, number) -> None:
    """Stopped or killed several times, and each time continued on another number of processes."""
    chance = random.Random(1000 * SEED + number)
    name = chance.choice(sorted(CASES))
    worlds, ways, world = [], [], 0
    interruptions = chance.randint(2, 4)
    while True:
        world = chance.choice([w for w in (1, 2, 3, 4) if w != world])
        # AdamW with portable numerics cannot be sharded.
        spread = world in (2, 4) and name != "adamw" and chance.random() < 0.4
        told = FSDP if spread else {"SHARES": chance.choice(SHARES.get(world, [""]))}
        staged = world > 1 and chance.random() < 0.3
        # Of four processes each a stage, or two copies of two.
        stages = chance.choice([2, 4]) if world == 4 else world
        told = {"STAGES": str(stages)} if staged else told
        workers = chance.choice([0, 0, 1])
        words = [*WORDS, *CASES[name], "--data.workers", workers]
        words += ["--run", tmp_path / "run", "--resume"]
        # Of stages the first one has the lanes' data.
        strike, victim = {}, 0 if staged else chance.randrange(world)
        if len(worlds) < interruptions:
            # Each attempt gets through some steps, so that all of them count.
            own = [int(count) for count in told.get("SHARES", "").split(",") if count]
            each = 8 * stages // world if staged else own[victim] if own else 8 // world
            lanes = chance.randint(1, 12) * each
            strike = {"at": "lane", "count": lanes, "signal": chance.choice([9, 15])}
        every = dict.fromkeys(range(world), told)
        attempt = start(tmp_path / str(len(worlds)), world, words, {victim: strike}, every)
        codes = attempt.wait(120)
        worlds.append(world)
        kind = f"in {stages} stages" if staged else "shards" if spread else told["SHARES"]
        ways.append(f"{world} {kind}".strip())
        if codes == [0] * world:
            break
        assert set(codes) <= {-signal.SIGKILL, 6} or set(codes) == {75}, attempt.output()
    assert len(worlds) > 2, "it was to be interrupted at least twice"
    assert_same_run(tmp_path / "run", references[name])
    print(f"{name}: {' → '.join(ways)} processes")


def test_the_ledger_sees_what_is_lost_or_repeated(tmp_path) -> None:
    """That the harness can fail: a line less and a line more are both found."""
    line = "0 0 5 6 7\n"
    for number, text in enumerate((line, line + "0 1 8\n", line + "1 0 5\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "0.ledger").write_text(text)
    assert consumed([tmp_path / "0"]) != consumed([tmp_path / "1"])
    assert consumed([tmp_path / "2"])[5] == 2
    assert harness.expected(0, 3, 6).total() == 6


def test_the_main_process_is_killed_while_others_wait_for_its_data(tmp_path) -> None:
    """They ask its store, which is gone with it."""
    attempt = start(
        tmp_path / "0", 2, [*WORDS, "--run", tmp_path / "run"], {0: {"at": "load", "signal": 9}}
    )
    assert attempt.wait(60) == [-9, 6], attempt.output()
    assert "error: process 1 lost the others" in attempt.output()


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_what_the_main_process_holds_is_saved(tmp_path, reference, victim) -> None:
    """Of four one dies in a step; the one before it is not lost, though no save was due."""
    run = tmp_path / "run"
    words = [*WORDS, "--checkpoint.every", 1000, "--run", run, "--resume"]
    attempt = start(tmp_path / "0", 4, words)
    deadline = time.monotonic() + 60
    while not (run / "trace.csv").exists() or len((run / "trace.csv").read_text().split()) < 17:
        assert time.monotonic() < deadline, attempt.output()
        time.sleep(0.01)
    attempt.ranks[victim].kill()
    attempt.ranks[0].join(60)
    assert attempt.ranks[0].exitcode == 6, attempt.output()
    attempt.end()
    last = int((run / "trace.csv").read_text().split()[-1].split(",")[0])
    assert whole_checkpoint(run) == last >= 16
    assert f"the others are gone; step {last} is saved" in attempt.said("out")
    again = start(tmp_path / "1", 2, words)
    assert again.wait(120) == [0, 0], again.output()
    assert f"going on after step {last} in" in again.said("out")
    assert_same_run(run, reference)
    assert consumed([tmp_path / "0", tmp_path / "1"]) == expected(0, SIZE, 2 * SIZE)
