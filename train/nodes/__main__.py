"""One machine's part of a training on several: meet the others, then torchrun's agent.

    python -m train.nodes --nodes 2 --rank 0 --at 10.0.0.1 --port 29500 --processes 4 … -- fit …

`make train NODES=2 …` prints and runs it. Trainers are children of this process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from host import launcher
from host.errors import HostError, LockstepError, Stopped, first_line
from host.nodes import Nodes
from train import cli
from train.nodes import addresses, alike, clocks, links, meeting, rounds, watching
from train.nodes.meeting import Meeting
from train.nodes.stores import say
from train.nodes.watching import Watch
from train.process import outcome, quiet
from train.verbs import Launched

_LAST_CALL = 10  # seconds for more machines, once enough are there
_RESTARTS = 10_000  # another machine's going counts as well; `Rounds` counts this one's failures
_HEAR = 8.0  # seconds to hear from the others why they ended
_JOIN = 120  # seconds that torchrun's agents have to find each other: all are there


def main(argv: list[str] | None = None) -> int:
    """Meet, and run the trainers of this machine; returns 1 where one of them failed."""
    options = _parsed(sys.argv[1:] if argv is None else argv)
    where = (options.nodes, options.rank, options.at, options.port)
    waits = {"wait": options.wait, "silence": options.silence}
    nodes = Nodes(*where, told_by="NODES", **waits, least=options.least)
    planned = {
        "processes": options.processes,
        "device": "cpu" if os.environ.get("ACCELERATE_USE_CPU") == "true" else "cuda",
        "precision": os.environ.get("ACCELERATE_MIXED_PRECISION", "no"),
    }
    try:
        command = cli.parse(options.words)
        config = cast(Launched, command.verb).experiment(command.options, command.knobs)
        with meeting.met(nodes, planned, alike.manifest(config)) as found:
            clocks.check(found)
            if nodes.least is None:  # else some may not be there yet
                network = links.network(links.measured(found), nodes.count)
                os.environ[launcher.NETWORK] = json.dumps(network)
            if nodes.rank != 0:
                say(f"{found.name(0)} shows how the training goes")
            with watching.watched(found) as watch:
                return _run(found, watch, options.processes, options.words)
    except LockstepError as error:
        outcome.ended(error)
        if outcome.VARIABLE not in os.environ:  # else the supervisor says it
            print(error.line(), file=sys.stderr)
        return error.code


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m train.nodes", description=__doc__)
    for name in ("nodes", "rank", "port", "processes", "wait", "silence"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--at", required=True)
    parser.add_argument("--least", type=int)
    parser.add_argument("words", nargs="+")
    return parser.parse_args(argv)


def _run(met: Meeting, watch: Watch, processes: int, words: list[str]) -> int:
    nodes = met.nodes
    own = met.words[nodes.rank].address
    rounds.register(watch)
    if nodes.least is not None:
        os.environ[launcher.ELASTIC] = str(Path(tempfile.mkdtemp()) / "run")
    # By a machine's name both would find 127.0.1.1 where /etc/hosts says so.
    interface = addresses.interface(own)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    config = LaunchConfig(
        min_nodes=nodes.least or nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=processes,
        run_id="lockstep",
        rdzv_backend=rounds.BACKEND,
        rdzv_endpoint=nodes.place,
        rdzv_configs={
            "is_host": nodes.rank == 0,
            "read_timeout": _JOIN,
            "join_timeout": nodes.wait + _JOIN if nodes.least else _JOIN,
            "last_call_timeout": min(_LAST_CALL, nodes.wait),
        },
        max_restarts=_RESTARTS if nodes.least else 0,
        local_addr=own,
    )
    quiet.launchers()
    try:
        elastic_launch(config, sys.executable)("-m", "train", *words)
    except ChildFailedError as failed:
        error = _cause(watch, failed)
        if error is not None:
            raise error from failed
        return 1
    except SignalException as signalled:
        watch.told(HostError(f"signal {signalled.sigval} ended it", "start all nodes again"))
        if outcome.asked() and outcome.told().error is None:
            raise Stopped(
                "a signal came while no trainer ran; the last checkpoint is whole, if there is one",
                "start this node again with the same command",
            ) from signalled
        return 128 + signalled.sigval
    except RendezvousTimeoutError as error:
        least = nodes.least or nodes.count
        raise HostError(
            f"fewer than {least} of {nodes.count} nodes came together in time",
            "start the others; NODE_WAIT= waits longer",
        ) from error
    except (RendezvousError, RuntimeError) as error:  # node 0 is gone, and torchrun asks it
        if watch.finished():  # it came back in the last moments
            return 0
        if outcome.told().known:
            return 1
        raise HostError(
            f"{met.name(0)} is gone: {first_line(error)}",
            "look there what became of it, and start all of them again",
        ) from error
    watch.told(None)
    return 0


def _cause(watch: Watch, failed: ChildFailedError) -> LockstepError | None:
    """Why the trainers ended; None where they have said it themselves."""
    said = outcome.told()
    if watch.lost is not None and not isinstance(said.error, Stopped):
        return watch.lost
    if said.known:
        watch.told(said.error)
        return None
    rank, failure = failed.get_first_failure()
    if failure.exitcode < 0:
        error = HostError(
            f"process {rank} was killed by {failure.signal_name()}",
            "look for lack of memory there (dmesg); then start all nodes again with the same words,"
            " RUN= and --resume",
        )
        watch.told(error)
        return error
    # It lost the others. One of them knows why, or has gone without a word.
    deadline = time.monotonic() + _HEAR
    while (cause := watch.cause()) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    return cause


if __name__ == "__main__":
    try:
        ended = main()
    except SystemExit as asked:  # a signal, before anybody trained
        ended = int(asked.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: where Python ends by itself, a thread that waits for the store aborts the process.
    os._exit(ended)
