"""The archive job: write topics to tables, exactly once, in rounds.

A round reads the archived offsets from the tables and the end offsets from the broker, lets workers write the records
in between to files, and commits each topic's files and archived offsets in one commit of its table. All state is in the
tables. After a crash at any time, the next round, here or on another machine, continues from the last commit. Files
that were not committed are in no table; a vacuum removes them.

A topic that fails does not stop the others. Two concurrent archivers do no harm: the store accepts one of two commits
on the same snapshot, and the other archiver restarts its round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, field, frozen

from korvet.client import REFUSALS, Client, OffsetAndMetadata, Topic, TopicPartition
from korvet.lake.errors import CommitConflict, LakeError, Unreachable
from korvet.lake.files import ArchivedRange, file_range
from korvet.lake.location import Location
from korvet.lake.parallel import results
from korvet.lake.put_if_absent import refuse_unsafe_store
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_plan import (
    Bounds,
    Rows,
    TopicPlan,
    Wanted,
    bounded,
    bounds_of,
    dealt,
    described,
    missing_text,
)
from korvet.pipeline.archive_task import Outcome, Piece
from korvet.pipeline.archive_workers import SparkFailed
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.counting import all_dense
from korvet.pipeline.group_offsets import GroupOffsets
from korvet.protocol.errors import KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition

GROUP = "korvet-lake"
# Attempts of a round that fails with a temporary error, before --once gives up.
ATTEMPTS = 5
# Consecutive rounds that lose to other archivers' commits, before --once gives up.
CONFLICTS = 50
CONTENDED = 6
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0

log = logging.getLogger(__name__)


class Workers(Protocol):
    """A way to write records to files."""

    @property
    def cores(self) -> int:
        """The number of tasks that run concurrently."""

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        """Write each task's pieces. Return all outcomes, in any order. Raises SparkFailed and JavaEnded."""


class MissingOffsets(LakeError):  # noqa: N818  the name states the fault
    """Offsets that remain to be archived are no longer in the log."""


class NotShared(LakeError):  # noqa: N818  the name states the fault
    """The lake is a local folder, and workers on other machines wrote to their own."""


@frozen
class ArchiveOptions:
    """The topics, the cluster and the lake of a job.

    With `every_s`, the job repeats in this interval. Otherwise it ends at the end offsets found at its start.
    """

    connecting: Connecting
    wanted: Wanted
    lake: Location
    every_s: float | None = None
    accept_gap: bool = False
    #: The group to which archived offsets are committed; None commits none.
    group_id: str | None = GROUP


@frozen
class Target:
    """A topic to archive: the bounds of all its partitions, and the ends of those that a round reads."""

    topic: Topic
    bounds: Mapping[int, Bounds]
    #: Returns the end offset of each partition to read, given its bounds.
    ends_of: Callable[[Mapping[int, Bounds]], dict[int, int]]


@define
class TopicProgress:
    """Progress of a topic since the start: what was committed, its lag, and its error."""

    topic: str
    records: int = 0
    row_bytes: int = 0
    offsets: int = 0
    lag: int = 0  # offsets that are not archived yet
    counts_records: bool = False  # offsets are dense, so they count records
    partitions: int = 0
    file_bytes: int = 0
    aborted: int = 0  # records of aborted transactions, which are not archived
    markers: int = 0  # of transactions
    error: str = ""
    #: True if retrying may help.
    may_pass: bool = False
    #: True if the next round should begin immediately.
    goes_on: bool = False
    #: Commits that other archivers' commits preceded.
    conflicts: int = 0
    #: Rises by 2 with each commit that another archiver's preceded, and falls by 1 with each other; 0 to CONTENDED.
    contention: int = 0
    #: Seconds that the last commit took.
    commit_s: float | None = None

    #: Averages over the last round that had rows.
    rows: Rows | None = None

    @property
    def is_contended(self) -> bool:
        """True if three commits in a row were lost to other archivers, or about every other one of ten.

        Two archivers on a busy machine may take turns, so that none loses two in a row.
        """
        return self.contention == CONTENDED

    def won(self) -> None:
        """Note that a commit succeeded."""
        self.contention = max(0, self.contention - 1)

    def lost(self) -> None:
        """Note that another archiver's commit preceded one."""
        self.conflicts += 1
        self.contention = min(CONTENDED, self.contention + 2)

    def add(self, ranges: Sequence[ArchivedRange]) -> None:
        """Count committed ranges."""
        records, row_bytes = sum(item.count for item in ranges), sum(item.row_bytes for item in ranges)
        offsets = sum(item.end - item.start for item in ranges)
        self.records += records
        self.row_bytes += row_bytes
        self.offsets += offsets
        self.aborted += sum(item.aborted for item in ranges)
        self.markers += sum(item.markers for item in ranges)
        self.file_bytes += sum(file.size for item in ranges for file in item.files)
        if records:
            self.rows = Rows(row_bytes / records, offsets / records)

    @property
    def lag_records(self) -> int | None:
        """The approximate number of records not archived yet; None while the ratio of offsets to records is unknown."""
        if self.counts_records or not self.lag:
            return self.lag
        return None if self.rows is None else round(self.lag / self.rows.offsets_each)


@define
class Archive:
    """One run of the job. `progress` has the state of each topic; `on_progress` is called on every change."""

    options: ArchiveOptions
    workers: Workers
    on_progress: Callable[[Archive], None] = lambda _: None
    progress: dict[str, TopicProgress] = field(factory=dict, init=False)
    #: Bytes of rows for each core, after which a round takes no further piece; None does not limit rounds.
    round_bytes: int | None = None
    stopping: threading.Event = field(factory=threading.Event, init=False)
    _tables: dict[str, LakeTable] = field(factory=dict, init=False)
    #: With --once: the end offset of each partition, fixed when it is first seen.
    _ends: dict[TopicPartition, int] = field(factory=dict, init=False)
    _group: GroupOffsets | None = field(init=False)
    #: Rounds since the last one that committed records.
    _idle_rounds: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        group_id = self.options.group_id
        self._group = None if group_id is None else GroupOffsets(self.options.connecting, group_id)

    def run(self) -> None:
        """Archive until nothing is left to do, or until `stop`. `progress` has the errors of topics.

        Raises LakeError if the store must not be used, JavaEnded, and the KafkaErrors of REFUSALS if the brokers refuse
        the login. Without `every_s`, raises KafkaError if no broker answers, and SparkFailed.
        """
        refuse_unsafe_store(self.options.lake)
        while not self.stopping.is_set():
            started = time.monotonic()
            if self._try_round():
                if self._idle_rounds > ATTEMPTS:
                    self.stopping.wait(self._backoff_s())
                continue
            if self.options.every_s is not None:
                self.stopping.wait(max(0.0, self.options.every_s - (time.monotonic() - started)))
                continue
            if not self._may_pass() or self._idle_rounds >= ATTEMPTS:
                return
            self.stopping.wait(self._backoff_s())

    def stop(self) -> None:
        """Make `run` return after the commit of the current round."""
        self.stopping.set()

    def _try_round(self) -> bool:
        """Run a round. Return True if the next one should begin immediately."""
        self._idle_rounds += 1
        try:
            return self.round()
        except (KafkaError, SparkFailed) as error:
            once = self.options.every_s is None
            if once and self._idle_rounds >= ATTEMPTS:
                raise
            if isinstance(error, REFUSALS) and (once or not self.progress):
                raise  # repeated attempts could lock the account
            log.warning("the round will be retried: %(error)s", {"error": error})
            self.stopping.wait(self._backoff_s())
            return True

    def _may_pass(self) -> bool:
        return any(progress.error and progress.may_pass for progress in self.progress.values())

    def _backoff_s(self) -> float:
        return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (self._idle_rounds - 1))

    def round(self) -> bool:
        """Run one round over all topics. Return True if there is more to do that should begin immediately."""
        found, failures = trio.run(self._describe)
        for topic, error in failures.items():
            self._failed(topic, error)
        return self.advance(
            [Target(topic, bounds, partial(self._ends_of, topic.name)) for topic, bounds in found]
        )

    def advance(self, targets: Sequence[Target]) -> bool:
        """Archive the targets in one job. Return True if there is more to do that should begin immediately.

        `progress` has the errors of topics. Raises KafkaError, SparkFailed and JavaEnded.
        """
        plans = [plan for _, plan in results(self._plan, targets) if plan is not None]
        self.on_progress(self)
        pieces = self._first_pieces([self._pieces(plan) for plan in plans])
        if pieces:
            outcomes = self._run_tasks(dealt(pieces, self.workers.cores))
            for _ in results(partial(self._commit_outcomes, outcomes=outcomes), plans):
                pass
            self.on_progress(self)
        if self._group is not None:
            trio.run(self._group.commit, offsets_of(plan.table for plan in plans))
        return any(self._progress(plan.table.topic).goes_on for plan in plans)

    # --- Planning -----------------------------------------------------------------------------------------

    async def _describe(self) -> tuple[list[tuple[Topic, dict[int, Bounds]]], dict[str, KafkaError]]:
        async with self._client() as client:
            return await described(client, self.options.wanted)

    async def _bounds(self, topic: Topic) -> dict[int, Bounds]:
        async with self._client() as client:
            return await bounds_of(client, topic)

    def _plan(self, target: Target) -> TopicPlan | None:
        """Plan a topic's round. Return None if it cannot be archived now; `progress` has the reason."""
        progress = self._progress(target.topic.name)
        progress.goes_on = False
        try:
            plan = self._checked_plan(target.topic, target.bounds, target.ends_of)
        except CommitConflict as error:
            self._conflict(progress, error)
            return None
        except LakeError as error:
            self._failed(target.topic.name, error)
            return None
        progress.lag = plan.lag
        progress.counts_records = all_dense(plan.ends.values())
        progress.partitions = len(plan.bounds)
        if not plan.lag:
            progress.error = ""
        return plan

    def _checked_plan(
        self,
        topic: Topic,
        bounds: Mapping[int, Bounds],
        ends_of: Callable[[Mapping[int, Bounds]], dict[int, int]],
    ) -> TopicPlan:
        table = self._open(topic)
        plan = TopicPlan(table, bounds, ends_of(bounds))
        if plan.truncated:
            # Another archiver may have committed records that were appended after the bounds were read.
            bounds = trio.run(self._bounds, topic)
            plan = TopicPlan(table, bounds, ends_of(bounds))
        if plan.truncated:
            raise LakeError(
                f"{topic.name}: partition {plan.truncated[0]} ends at "
                f"{bounds[plan.truncated[0]].last_stable_offset}, before "
                f"{table.archived_up_to[plan.truncated[0]]}, the archived offset; "
                "records have been lost, or it is a different topic of the same name."
            )
        missing = plan.missing
        if missing and not self.options.accept_gap:
            raise MissingOffsets(missing_text(missing, topic.name))
        starts = [
            ArchivedRange(partition, bounds[partition].log_start_offset, bounds[partition].log_start_offset)
            for partition in plan.new_partitions
        ]
        if starts or missing:
            plan.table = self._tables[topic.name] = table.commit(starts, missing)
            for gap in missing:
                log.warning(
                    "%(topic)s-%(partition)d: the gap from %(start)d to %(end)d was accepted",
                    {"topic": topic.name, "partition": gap.partition, "start": gap.start, "end": gap.end},
                )
        return plan

    def _open(self, topic: Topic) -> LakeTable:
        known = self._tables.get(topic.name)
        if known is None:
            table = LakeTable.open_or_create(self.options.lake, topic.name, topic.topic_id)
        else:
            table = LakeTable.open(self.options.lake, topic.name, topic.topic_id, previous=known)
        self._tables[topic.name] = table
        return table

    def _ends_of(self, topic: str, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        if self.options.every_s is not None:
            return {partition: bound.last_stable_offset for partition, bound in bounds.items()}
        return {
            partition: max(
                bound.log_start_offset,
                self._ends.setdefault(TopicPartition(topic, partition), bound.last_stable_offset),
            )
            for partition, bound in bounds.items()
        }

    def _pieces(self, plan: TopicPlan) -> list[Piece]:
        if not plan.lag:
            return []  # `workers.cores` would start a Spark session
        return plan.pieces(self.workers.cores, self._progress(plan.table.topic).rows)

    def _first_pieces(self, pieces: Sequence[Sequence[Piece]]) -> list[Piece]:
        """Return the topics' first pieces, each topic's in turn, up to `round_bytes` for each core."""
        in_turn = [piece for row in zip_longest(*pieces) for piece in row if piece is not None]
        if self.round_bytes is None or not in_turn:
            return in_turn
        rows = {piece.tp.topic: self._progress(piece.tp.topic).rows for piece in in_turn}
        return bounded(in_turn, self.round_bytes * self.workers.cores, rows)

    # --- Working ------------------------------------------------------------------------------------------

    def _run_tasks(self, tasks: Sequence[Sequence[Piece]]) -> dict[TopicPartition, list[Outcome]]:
        """Run the tasks. Return each partition's outcomes by offset."""
        outcomes: dict[TopicPartition, list[Outcome]] = {}
        for outcome in sorted(self.workers.run(tasks), key=lambda outcome: (outcome.tp, outcome.start)):
            outcomes.setdefault(outcome.tp, []).append(outcome)
        return outcomes

    def _commit_outcomes(self, plan: TopicPlan, outcomes: Mapping[TopicPartition, Sequence[Outcome]]) -> None:
        """Commit the ranges that continue a topic's archived offsets without a gap."""
        topic = plan.table.topic
        progress = self._progress(topic)
        ranges: list[ArchivedRange] = []
        errors = []
        for partition in plan.ends:
            several = outcomes.get(TopicPartition(topic, partition), ())
            ranges += following(plan.table, partition, several)
            errors += [outcome.error for outcome in several if outcome.error]
        try:
            if ranges:
                refuse_unshared(plan.table, ranges)
                started = time.monotonic()
                plan.table = self._tables[topic] = plan.table.commit(ranges)
                progress.commit_s = time.monotonic() - started
                progress.won()
        except CommitConflict as error:
            self._conflict(progress, error)
            return
        except LakeError as error:
            self._failed(topic, error)
            return
        if ranges:
            self._idle_rounds = 0
        progress.add(ranges)
        progress.lag = plan.lag
        progress.goes_on = bool(ranges) and plan.lag > 0
        progress.error = errors[0] if errors else ""
        progress.may_pass = True

    def table(self, topic: str) -> LakeTable | None:
        """Return the snapshot of a topic's table after the last plan or commit, None before."""
        return self._tables.get(topic)

    def _client(self) -> AbstractAsyncContextManager[Client]:
        return self.options.connecting.open()

    def _progress(self, topic: str) -> TopicProgress:
        return self.progress.setdefault(topic, TopicProgress(topic))

    def _conflict(self, progress: TopicProgress, error: CommitConflict) -> None:
        """Retry after another archiver committed first, with an increasing delay if that happens repeatedly."""
        # If several archivers run permanently, all but one thereby become standbys, which check twice a minute.
        log.info("%(error)s", {"error": error})
        progress.lost()
        if self.options.every_s is not None or self._idle_rounds < CONFLICTS:
            progress.goes_on = True
        else:
            self._failed(progress.topic, error)

    def _failed(self, topic: str, error: Exception) -> None:
        progress = self._progress(topic)
        progress.error = str(error)
        progress.may_pass = isinstance(error, (KafkaError, Unreachable)) and not isinstance(
            error, (UnknownTopicOrPartition, TopicAuthorizationFailed)
        )
        progress.goes_on = False


def offsets_of(tables: Iterable[LakeTable]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the archived offsets of tables, for a group."""
    return {
        TopicPartition(table.topic, partition): OffsetAndMetadata(number)
        for table in tables
        for partition, number in table.archived_up_to.items()
    }


def refuse_unshared(table: LakeTable, ranges: Iterable[ArchivedRange]) -> None:
    """Raise NotShared if files that workers wrote are not in the folder on this machine."""
    if not table.location.is_local:
        return
    for file in (file for item in ranges for file in item.files):
        path = Path(table.absolute(file))
        if not path.exists() or path.stat().st_size != file.size:
            raise NotShared(
                f"a worker has written {path}, which is not on this machine: workers on other machines need a lake "
                "that all of them share, a mounted folder or s3://bucket/prefix."
            )


def following(table: LakeTable, partition: int, outcomes: Iterable[Outcome]) -> list[ArchivedRange]:
    """Return the ranges that continue a partition's archived offset, up to the first gap between them."""
    # If a piece had no records, the names of the files after it do not continue those before it. They are left out, and
    # the next round writes them again.
    position = table.archived_up_to[partition]
    covered = table.covered(partition)
    ranges: list[ArchivedRange] = []
    for item in (item for outcome in outcomes for item in outcome.ranges):
        held = file_range(item.files[0].path) if item.files else None
        if item.start != position or (held is not None and held.start != covered):
            break
        ranges.append(item)
        position = item.end
        if held is not None:
            covered = item.end
    return ranges
