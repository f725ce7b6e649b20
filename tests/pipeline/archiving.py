"""The archive without Spark: workers in this process, and a program that kills itself at a given step.

python -m tests.pipeline.archiving BOOTSTRAP-SERVERS TOPICS LAKE [STEP ROUND]
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from korvet.client import Record
from korvet.lake.file_writing import RangeWriter
from korvet.lake.files import ArchivedRange
from korvet.lake.location import Location
from korvet.lake.table import Gap, LakeTable
from korvet.pipeline.archive import Archive, ArchiveOptions
from korvet.pipeline.archive_plan import Wanted
from korvet.pipeline.archive_task import Outcome, Piece, write_pieces
from korvet.pipeline.cluster import Connecting
from tests.lake.replay import Row
from tests.pipeline.support import Cluster

STEPS = ("plan", "task", "files", "before commit", "after commit")


@frozen
class WorkersHere:
    """Workers that run tasks sequentially in this process. The tasks are planned for `cores`."""

    connecting: Connecting
    cores: int = 2

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        return [outcome for task in tasks for outcome in write_pieces(self.connecting, task)]


def archive_of(
    bootstrap_servers: str,
    topics: str,
    lake: Path | Location,
    *,
    cores: int = 2,
    every_s: float | None = None,
    accept_gap: bool = False,
) -> Archive:
    """Return an archive that is ready to run, to a folder or another location."""
    connecting = Connecting(bootstrap_servers)
    place = lake if isinstance(lake, Location) else Location.parse(str(lake))
    options = ArchiveOptions(connecting, Wanted.parse(topics), place, every_s, accept_gap=accept_gap)
    return Archive(options, WorkersHere(connecting, cores))


def archived(bootstrap_servers: str, topics: str, lake: Path | Location, **how: bool | int) -> Archive:
    """Archive all records, and return the archive."""
    archive = archive_of(bootstrap_servers, topics, lake, **how)
    archive.run()
    return archive


def values(count: int, *, first: int = 0, **more: object) -> list[Record]:
    return [
        Record(f"value {number}".encode(), key=f"key {number}".encode(), **more)
        for number in range(first, first + count)
    ]


PAUSE_S = 0.05  # between lots, or the machine has no time for anything else


@contextmanager
def growing(cluster: Cluster, topic: str) -> Iterator[None]:
    """Produce batches of records in a thread until the block ends."""
    ended = threading.Event()

    def produce() -> None:
        number = 0
        while not ended.wait(PAUSE_S):
            cluster.produce(topic, values(50, first=number))
            number += 50

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def log_of(cluster: Cluster, topic: str, partitions: int = 1) -> list[Row]:
    """Return all records of a topic, as a consumer reads them."""
    rows = [
        Row(
            row["topic"],
            row["partition"],
            row["offset"],
            0,
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in cluster.read(
            subscribe=topic, includeHeaders=True, kafka__isolation__level="read_committed"
        )
    ]
    return sorted(rows)


def without_times(rows: Iterable[Row]) -> list[Row]:
    return [row._replace(timestamp_ms=0) for row in rows]


# --- Killed -----------------------------------------------------------------------------------------------


# Processes are forked off one that has imported everything.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def killed_at(bootstrap_servers: str, topic: str, lake: Path, step: str, number: int) -> None:
    """Run the archive as a process that is killed (SIGKILL) at a step of its nth round; assert that it was."""
    process = PROCESSES.Process(target=run_to_death, args=(bootstrap_servers, topic, lake, step, number))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, f"{step} {number}: {process.exitcode}"


def run_to_death(bootstrap_servers: str, topic: str, lake: Path, step: str, number: int) -> None:
    deadly(archive_of(bootstrap_servers, topic, lake, every_s=0.01), step, number).run()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nth(number: int, what: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `what` at its nth call, and does nothing before."""
    calls = iter(range(1, number + 1))

    def call() -> None:
        if next(calls) == number:
            what()

    return call


def deadly(archive: Archive, step: str, number: int) -> Archive:
    """Return the archive, changed so that it kills this process at a step of its nth round."""
    dying = nth(number, die)
    if step in {"plan", "files"}:
        archive.workers = DeadlyWorkers(archive.workers, dying, first=step == "plan")
    elif step == "task":
        write = RangeWriter.write

        def write_and_die(writer: RangeWriter, *arguments: object) -> ArchivedRange:
            written: ArchivedRange = write(writer, *arguments)
            dying()
            return written

        RangeWriter.write = write_and_die  # type: ignore[assignment, method-assign]
    else:
        commit = LakeTable.commit

        def commit_and_die(
            table: LakeTable, ranges: Sequence[ArchivedRange], gaps: Sequence[Gap] = ()
        ) -> LakeTable:
            holds_records = any(item.files for item in ranges)
            if step == "before commit" and holds_records:
                dying()
            committed: LakeTable = commit(table, ranges, gaps)
            if step == "after commit" and holds_records:
                dying()
            return committed

        LakeTable.commit = commit_and_die  # type: ignore[assignment, method-assign]
    return archive


@frozen
class DeadlyWorkers:
    """Workers that end this process before or after they do their work."""

    workers: WorkersHere
    dying: Callable[[], None]
    first: bool

    @property
    def cores(self) -> int:
        return self.workers.cores

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        if self.first:
            self.dying()
        outcomes = self.workers.run(tasks)
        self.dying()
        return outcomes
