"""The rounds of `korvet lake run`: archive what is due of all topics in one job, then tend each table in a thread.

No state is kept outside of the tables. A run that is killed at any time is continued by the next one, here or on
another machine. Failures stay with their table. Of two runs on one lake, one becomes each table's standby.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import trio
from attrs import define, field, frozen

from korvet.client import REFUSALS, Client, Topic
from korvet.client.administration import topic_settings
from korvet.config import ConfigError
from korvet.lake.errors import Unreachable
from korvet.lake.parallel import results
from korvet.lake.put_if_absent import refuse_unsafe_store
from korvet.pipeline.archive import Archive, ArchiveOptions, Target, TopicProgress, Workers
from korvet.pipeline.archive_plan import Bounds, Wanted
from korvet.pipeline.archive_workers import SparkFailed
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.group_offsets import GroupOffsets
from korvet.pipeline.run.observing import Bounded, Ends, bounds_of_topics, end_offsets
from korvet.pipeline.run.policy import DESCRIBED, LakeFile, Policy
from korvet.pipeline.run.reporting import REPORT_EVERY_S, Reports
from korvet.pipeline.run.schedule import Health, State, TableSchedule, poll_s
from korvet.pipeline.run.status import TableStatus
from korvet.pipeline.run.tables import Places, Table, healths_that_may_pass
from korvet.protocol.errors import KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition

log = logging.getLogger(__name__)

# Attempts of failed work before --once gives up, and rounds without a record although some wait.
ATTEMPTS = 5
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
# Bytes of rows for each core in one round: a backlog delays other tables by one round.
ROUND_BYTES = 256 * 1024 * 1024
# Settings of topics are read when there are new topics, and in this interval.
SETTINGS_EVERY_S = 10.0
SHORTEST_WAIT_S = 0.02


@frozen
class Seen:
    """The answers of the brokers in one round."""

    topics: Mapping[str, Topic]
    policies: Mapping[str, Policy]
    #: Topics whose settings are invalid, with the fault.
    faults: Mapping[str, str]
    ends: Mapping[str, Ends]
    errors: Mapping[str, KafkaError]


@define
class Run:
    """Keeps the tables of a lake up to date. A job: `stop` ends it after the round in progress."""

    file: LakeFile
    connecting: Connecting
    places: Places
    workers: Workers
    #: End when all tables have what was there at the start.
    once: bool = False
    on_round: Callable[[Run], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    tables: dict[str, Table] = field(factory=dict, init=False)
    #: The state of each table after the last round; replaced, never changed.
    statuses: tuple[TableStatus, ...] = field(default=(), init=False)
    #: The error of the last round, "" if the brokers answered.
    error: str = field(default="", init=False)
    rounds: int = field(default=0, init=False)
    stopping: threading.Event = field(factory=threading.Event, init=False)
    _archive: Archive = field(init=False)
    _reports: Reports = field(init=False)
    _settings: dict[str, dict[str, str]] = field(factory=dict, init=False)
    _settings_s: float = field(default=-math.inf, init=False)
    #: With `once`: the topics, and their end offsets, at the start.
    _chosen: set[str] | None = field(default=None, init=False)
    _ends: dict[str, Ends] = field(factory=dict, init=False)
    _failures: int = field(default=0, init=False)
    _idle_rounds: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        options = ArchiveOptions(
            self.connecting, Wanted((), ()), self.places.lake, every_s=math.inf, group_id=None
        )
        self._reports = Reports(GroupOffsets(self.connecting, self.file.group))
        self._archive = Archive(options, self.workers, round_bytes=ROUND_BYTES)

    def stop(self) -> None:
        """Make `run` return after the round in progress has committed."""
        self.stopping.set()

    def run(self) -> None:
        """Run rounds until `stop`, or with `once` until nothing is left. `tables` have the errors.

        Raises LakeError if the store must not be used, JavaEnded, and the KafkaErrors of REFUSALS if the brokers refuse
        the login. With `once`, raises KafkaError if no broker answers.
        """
        refuse_unsafe_store(self.places.lake)
        refuse_unsafe_store(self.places.typed)
        while not self.stopping.is_set():
            wait_s = self._try_round()
            self.on_round(self)
            if wait_s is None:
                break
            self.stopping.wait(wait_s)
        self._report(is_last=True)

    def _try_round(self) -> float | None:
        """Run a round. Return how long to wait for the next one, None if nothing is left to do."""
        try:
            self.round()
        except KafkaError as error:
            if isinstance(error, REFUSALS) and (self.once or not self.rounds):
                raise  # repeated attempts could lock the account
            self._failures += 1
            if self.once and self._failures >= ATTEMPTS:
                raise
            self.error = str(error)
            log.warning("the round will be retried: %(error)s", {"error": error})
            return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (self._failures - 1))
        self._failures = 0
        self.error = ""
        return self._wait_s()

    def round(self) -> None:
        """Run one round over all tables. Raises KafkaError if no broker answers."""
        now = self.clock()
        seen, due, found = trio.run(self._observe, now)
        if not self.rounds:
            self._publish()  # for reports during a long first round
        with self._reporting():
            self._advance(now, seen, due, found)
            tend = partial(self._tend, now)
            for _ in results(tend, [table for table in self.tables.values() if table.described is not None]):
                pass
        self.rounds += 1
        self._publish()
        self._report()

    def _wait_s(self) -> float | None:
        """Return the seconds until the next round, None if nothing is left to do."""
        now = self.clock()
        if self.once:
            return self._wait_once_s(now)
        if any(self._has_more(table, now) for table in self.tables.values()):
            return 0.0
        poll = poll_s([table.schedule.policy.lag_s for table in self.tables.values()])
        due_s = min((table.schedule.next_s() for table in self.tables.values()), default=math.inf)
        return max(SHORTEST_WAIT_S, min(poll, due_s - now))

    def _wait_once_s(self, now: float) -> float | None:
        tables = [table for table in self.tables.values() if table.described is not None]
        due = [table for table in tables if table.schedule.due(now, at_once=True)]
        if due:
            if self._idle_rounds < ATTEMPTS:
                return 0.0 if not self._idle_rounds else FIRST_BACKOFF_S * 2.0 ** (self._idle_rounds - 1)
            for table in due:
                table.schedule.archive.failed(
                    now, "the broker returns no records below the end offset", may_pass=False
                )
            self._publish()
        if any(table.has_more for table in tables):
            return 0.0
        waits = [
            max(SHORTEST_WAIT_S, health.again_s - now)
            for table in tables
            for health in healths_that_may_pass(table.schedule)
            if health.failures < ATTEMPTS
        ]
        return min(waits, default=None)

    def _has_more(self, table: Table, now: float) -> bool:
        if table.has_more:
            return True
        progress = self._archive.progress.get(table.topic)
        return progress is not None and progress.goes_on and bool(table.schedule.due(now))

    # --- Observing ------------------------------------------------------------------------------------------

    async def _observe(self, now: float) -> tuple[Seen, dict[str, set[int]], Bounded]:
        """Ask the brokers. Return their answers, and by topic the partitions that are due, and the bounds."""
        async with self.connecting.open() as client:
            seen = await self._see(client, now)
            self._follow(now, seen)
            due = self._due(now)
            return seen, due, await bounds_of_topics(client, [seen.topics[name] for name in due], seen.ends)

    async def _see(self, client: Client, now: float) -> Seen:
        topics = await client.topics()
        if self.once:
            self._chosen = self._chosen if self._chosen is not None else {*topics}
            topics = {name: topic for name, topic in topics.items() if name in self._chosen}
        if now - self._settings_s >= SETTINGS_EVERY_S or topics.keys() - self._settings.keys():
            self._settings = await topic_settings(client, [*topics], DESCRIBED)
            self._settings_s = now
        policies, faults = self._policies(topics)
        wanted = [topics[name] for name in policies if not self.once or name not in self._ends]
        ends, errors = await end_offsets(client, wanted)
        if self.once:
            ends = self._ends = self._ends | ends
        return Seen(topics, policies, faults, ends, errors)

    def _policies(self, topics: Mapping[str, Topic]) -> tuple[dict[str, Policy], dict[str, str]]:
        policies: dict[str, Policy] = {}
        faults: dict[str, str] = {}
        for name, topic in topics.items():
            try:
                policy = self.file.policy(name, self._settings.get(name, {}), is_internal=topic.is_internal)
            except ConfigError as error:
                faults[name] = "; ".join(error.errors)
            else:
                if policy is not None:
                    policies[name] = policy
        return policies, faults

    def _follow(self, now: float, seen: Seen) -> None:
        """Add new tables, drop those that no policy names any more, and note what was seen of the others."""
        for name in self.file.names:
            section = self.file.sections[name]
            if name not in seen.topics and section.enable is not False:
                table = self._table(name, Policy(name))
                table.described = None
                _failed(table.schedule.archive, now, UnknownTopicOrPartition(f"There is no topic {name}."))
        for name, fault in seen.faults.items():
            table = self._table(name, Policy(name))
            table.described = None
            table.schedule.archive.failed(now, fault, may_pass=False)
        for name, policy in seen.policies.items():
            table = self._table(name, policy)
            if table.described is None:
                table.schedule.archive.succeeded()
            table.described = seen.topics[name]
            table.schedule.follow(policy)
            table.schedule.observe(now, seen.ends.get(name, {}))
            if name in seen.errors:
                _failed(table.schedule.archive, now, seen.errors[name])
        kept = {*seen.policies, *seen.faults, *self.file.names}
        self.tables = {name: table for name, table in self.tables.items() if name in kept}

    def _table(self, topic: str, policy: Policy) -> Table:
        if topic not in self.tables:
            self.tables[topic] = Table(topic, TableSchedule(policy))
        return self.tables[topic]

    # --- Archiving ------------------------------------------------------------------------------------------

    def _due(self, now: float) -> dict[str, set[int]]:
        """Return the partitions that are due, by topic."""
        return {
            name: partitions
            for name, table in self.tables.items()
            if table.described is not None
            and (partitions := table.schedule.due(now, self._bytes_an_offset(name), at_once=self.once))
        }

    def _advance(self, now: float, seen: Seen, due: Mapping[str, set[int]], found: Bounded) -> None:
        """Archive all that is due, in one job."""
        for name, table in self.tables.items():
            if name not in due and not table.schedule.lag_offsets and table.described is not None:
                table.schedule.recover(now)
        if not due:
            return
        for name, error in found.errors.items():
            _failed(self.tables[name].schedule.archive, now, error)
        archived = sum(progress.offsets for progress in self._archive.progress.values())
        targets = [
            Target(seen.topics[name], bounds, partial(self._ends_of, name, due[name]))
            for name, bounds in found.bounds.items()
        ]
        try:
            self._archive.advance(targets)
        except SparkFailed as error:
            for name in found.bounds:
                self.tables[name].schedule.archive.failed(now, str(error), may_pass=True)
            return
        has_advanced = sum(progress.offsets for progress in self._archive.progress.values()) > archived
        self._idle_rounds = 0 if has_advanced else self._idle_rounds + 1
        for name in found.bounds:
            self._note(now, self.tables[name], self._archive.progress[name])

    def _note(self, now: float, table: Table, progress: TopicProgress) -> None:
        """Note what the archive did for a table."""
        schedule = table.schedule
        if progress.error:
            schedule.archive.failed(now, progress.error, may_pass=progress.may_pass)
        else:
            schedule.archive.succeeded()
        if progress.is_contended and not schedule.is_standby:
            log.warning("%(topic)s: another run commits to this table", {"topic": table.topic})
        schedule.is_standby = progress.is_contended
        snapshot = self._archive.table(table.topic)
        if snapshot is not None:
            table.archive = snapshot
            schedule.committed(snapshot.archived_up_to)

    def _ends_of(self, topic: str, due: set[int], bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """Return the ends of the partitions that are due."""
        known = self._ends.get(topic, {}) if self.once else None
        return {
            partition: each.last_stable_offset
            if known is None
            else max(each.log_start_offset, known.get(partition, each.log_start_offset))
            for partition, each in bounds.items()
            if partition in due
        }

    def _bytes_an_offset(self, topic: str) -> float | None:
        progress = self._archive.progress.get(topic)
        if progress is None or progress.rows is None:
            return None
        return progress.rows.bytes_each / progress.rows.offsets_each

    # --- Tables ---------------------------------------------------------------------------------------------

    def _tend(self, now: float, table: Table) -> None:
        if self.once and table.schedule.due(now, at_once=True):
            return  # it is decoded up to the end of the archive, which is not there yet
        try:
            table.tend(self.places, now, once=self.once)
        except Unreachable as error:
            table.schedule.upkeep.failed(now, str(error), may_pass=True)

    def _publish(self) -> None:
        now = self.clock()
        self.statuses = tuple(
            TableStatus.of(table, str(self.places.lake.child(name)), self._archive.progress.get(name), now)
            for name, table in sorted(self.tables.items())
        )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report the last known state in an interval during the block, so that no report becomes old."""
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(REPORT_EVERY_S):
                self._report()

        thread = threading.Thread(target=report, name="reports")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _report(self, *, is_last: bool = False) -> None:
        report = partial(self._reports.commit, is_last=is_last)
        trio.run(report, self.clock(), self.statuses, self.tables)

    # --- Results --------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True if a round was completed, and any table advances, or there is none."""
        if not self.rounds or self.error:
            return False
        states = [status.state for status in self.statuses]
        return not states or any(state not in (State.RETRYING, State.FAILED) for state in states)

    @property
    def failed(self) -> list[TableStatus]:
        """The tables with an error."""
        return [status for status in self.statuses if status.error]

    @property
    def exceeded(self) -> dict[str, str]:
        """The tables whose bad rows exceed a threshold of their policy, in words."""
        found = {
            name: table.schedule.policy.exceeded(table.decoded.records, table.decoded.bad)
            for name, table in self.tables.items()
        }
        return {name: text for name, text in found.items() if text}


def _failed(health: Health, now: float, error: KafkaError) -> None:
    may_pass = not isinstance(error, (UnknownTopicOrPartition, TopicAuthorizationFailed))
    health.failed(now, str(error), may_pass=may_pass)
