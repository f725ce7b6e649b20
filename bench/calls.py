"""The ways of small requests through the broker: `python -m bench.calls` counts what one Produce and one Fetch call.

A broker in this process serves a client in a thread: ten records, one partition, warm. Counted are korvet's files, the
functions in them, and the calls; a function that waits is called again when it resumes. `--list` prints each function.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import trio
from attrs import frozen

import korvet
from bench.groups import commit_request
from bench.processes import SYSTEMS, storage_of, temporary_folder
from korvet.cli.broker_settings import read_config
from korvet.handlers import APIS
from korvet.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from korvet.protocol.record_batch import build_batch
from korvet.server import connection
from korvet.server.assembly import open_server
from tests.support.wire import (
    SPOKEN,
    Wire,
    create_topic,
    fetch_request,
    fetched,
    frame_of,
    produce_request,
    produced,
)

ROOT = str(Path(korvet.__file__).parent)
TOPIC = "t"
RECORDS = 10
WARM_UP = 20
# Of several requests, the one with the fewest calls is reported: other tasks run beside some of them.
REPETITIONS = 100
# Counting slows requests. With the broker's own time slices, a connection could give way to others after each.
SLICE_S = 10.0

# A file and a function of it.
Function = tuple[str, str]


@frozen
class Way:
    """The calls that one request caused."""

    calls: Counter[Function]

    @property
    def files(self) -> Counter[str]:
        """The number of calls into each file."""
        found: Counter[str] = Counter()
        for (path, _), count in self.calls.items():
            found[path] += count
        return found

    def __str__(self) -> str:
        return f"{len(self.files)} files, {len(self.calls)} functions, {self.calls.total()} calls"


class Recorder:
    """Counts calls of korvet's functions in the thread that starts it."""

    def __init__(self) -> None:
        self._calls: Counter[Function] = Counter()

    def start(self) -> None:
        """Count from now on."""
        self._calls = Counter()
        sys.setprofile(self._note)

    def stop(self) -> Way:
        """Return what was called since `start`."""
        sys.setprofile(None)
        return Way(self._calls)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            path = code.co_filename[len(ROOT) + 1 :]
            self._calls[path, f"{code.co_qualname}:{code.co_firstlineno}"] += 1


def ten_records() -> bytes:
    """Return a batch of ten records of 100 bytes."""
    now_ms = int(time.time() * 1000)
    return bytes(build_batch([(i, now_ms, None, b"x" * 100, ()) for i in range(RECORDS)]))


def requests(port: int, system: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each measured request, and a function that sends it and checks its answer."""
    topic = f"{TOPIC}-{system}"
    create_topic(port, topic, settings=SYSTEMS[system])
    with Wire(port) as wire:
        produce = frame_of(produce_request(topic, ten_records()))

        def ask(frame: bytes) -> bytearray:
            wire.send(frame)
            return wire.receive()

        yield "Produce", lambda: produced(ask(produce))
        fetch = frame_of(fetch_request(topic, produced(ask(produce)), max_wait_ms=500))
        if not fetched(ask(fetch)):
            message = "a fetch was answered without records"
            raise AssertionError(message)
        yield "Fetch", lambda: fetched(ask(fetch))
        commit = commit_request("g", topic, [0])
        yield "OffsetCommit", lambda: wire.call(commit)


async def ways(system: str, storage: str) -> dict[str, Way]:
    """Return the shortest way of each request on that storage."""
    config = read_config(None, (), storage=storage, listeners="127.0.0.1:0")
    found: dict[str, Way] = {}
    for key in APIS:
        APIS[key]  # otherwise the server imports handlers beside the requests
    async with open_server(config) as server:
        port = server.listeners[0].listener.port
        recorder = Recorder()
        named = requests(port, system)
        while (request := await trio.to_thread.run_sync(next, named, None)) is not None:
            name, ask = request
            for _ in range(WARM_UP):
                await trio.to_thread.run_sync(ask)
            measured = []
            for _ in range(REPETITIONS):
                recorder.start()
                await trio.to_thread.run_sync(ask)
                measured.append(recorder.stop())
            found[name] = min(measured, key=lambda way: (way.calls.total(), len(way.calls)))
    return found


def measured(system: str) -> dict[str, Way]:
    """Return the ways through a broker of its own; see `bench.processes.SYSTEMS`."""
    SPOKEN.setdefault(OffsetCommitRequest, (8, OffsetCommitResponse))
    with ExitStack() as stack:
        stack.enter_context(patch.object(connection, "SLICE_S", SLICE_S))
        folder = stack.enter_context(temporary_folder()) / "data"
        return trio.run(ways, system, storage_of(system, folder))


def main() -> None:
    """Print the figures of each request and system."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("systems", nargs="*", default=[*SYSTEMS], help=f"some of {', '.join(SYSTEMS)}")
    parser.add_argument("--list", action="store_true", help="print each function, by file")
    options = parser.parse_args()
    for system in options.systems:
        for name, way in measured(system).items():
            print(f"{system:<8} {name:<14} {way}")
            if options.list:
                for path, calls in sorted(way.files.items()):
                    print(f"    {calls:4}  {path}")
                    for (where, function), count in sorted(way.calls.items()):
                        if where == path:
                            print(f"              {count:4}  {function}")


if __name__ == "__main__":
    main()
