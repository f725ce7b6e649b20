"""Read the metrics of a process: what the recorder has counted, and what is only known when it is requested.

Every read has a deadline, so that a store that does not answer cannot delay a scrape for longer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

import korvet
from korvet.broker.broker import Broker
from korvet.broker.limits import share_of
from korvet.concurrency.histograms import observe
from korvet.groups.consumer_members import ConsumerState
from korvet.groups.members import State
from korvet.groups.share import ShareGroup
from korvet.metrics import names
from korvet.metrics.definitions import METRICS
from korvet.metrics.lag import Ends, LagReader, archive
from korvet.metrics.recorder import Recorder
from korvet.metrics.samples import Samples
from korvet.protocol.errors import KafkaError
from korvet.server.server import Server
from korvet.storage.interface import Measurements

logger = logging.getLogger(__name__)

READY_LIMIT_S = 1.0
# Limit of the time for each part of a scrape that reads from the store.
PART_LIMIT_S = 3.0
LOOP_INTERVAL_S = 0.1


#: The states of groups of either type, except for that of a group that is gone.
GROUP_STATES = tuple(dict.fromkeys(each.value for each in (*State, *ConsumerState) if each is not State.DEAD))


@define(eq=False)
class Gatherer:
    """The metrics of one process. Until `server` is set, the process does not serve."""

    recorder: Recorder
    server: Server | None = None
    _lags: LagReader = field(factory=LagReader)

    async def is_ready(self) -> bool:
        """Return True if the process serves and its store answers within READY_LIMIT_S."""
        if self.server is None or self.server.is_stopping:
            return False
        with trio.move_on_after(READY_LIMIT_S):
            try:
                await self.server.broker.check_store()
            except KafkaError:
                return False
            return True
        return False

    async def samples(self, *, reads_store: bool = True) -> Samples:
        """Return the present values of all metrics; without `reads_store`, only those of this process."""
        began = trio.current_time()
        is_ready = await self.is_ready()
        samples: Samples = {}
        if self.server is not None:
            self._add_server(self.server, samples)
            if is_ready:
                await self._add_reads(self.server.broker, samples, reads_store=reads_store)
        samples |= self.recorder.samples()
        samples[names.BUILD_INFO] = {(korvet.__version__,): 1}
        samples[names.READY] = {(): float(is_ready)}
        samples[names.PROCESSES] = {(): 1}
        self._add_process(samples)
        samples[names.SCRAPE_SECONDS] = {(): trio.current_time() - began}
        return samples

    def _add_server(self, server: Server, samples: Samples) -> None:
        """Add what the process knows without waiting."""
        budgets, broker = server.budgets.items(), server.broker
        samples[names.MEMORY_BUDGET_USED_BYTES] = {(name,): used for name, (used, _) in budgets}
        samples[names.MEMORY_BUDGET_LIMIT_BYTES] = {(name,): limit for name, (_, limit) in budgets}
        samples[names.MEMORY_STORAGE_BYTES] = {(): broker.store.held_bytes}
        retention, compaction, remote = broker.retention, broker.compaction, broker.log.remote
        counts: dict[str, float] = {
            names.RETENTION_TRIMS_TOTAL: retention.trims,
            names.RETENTION_ERRORS_TOTAL: retention.errors,
            names.COMPACTIONS_TOTAL: compaction.compactions,
            names.COMPACTION_ERRORS_TOTAL: compaction.errors,
            names.COMPACTION_REMOVED_BYTES_TOTAL: compaction.removed_bytes,
            names.COMPACTION_SECONDS_TOTAL: compaction.seconds,
        }
        if retention.last_run_s:
            counts[names.RETENTION_LAST_RUN_TIMESTAMP_SECONDS] = retention.last_run_s
        if remote is not None:
            counts[names.REMOTE_REQUESTS_TOTAL] = sum(remote.times[:-1])
            counts[names.REMOTE_ERRORS_TOTAL] = remote.errors
            counts[names.REMOTE_READ_BYTES_TOTAL] = remote.read_bytes
            samples[names.REMOTE_REQUEST_SECONDS] = {(): [*remote.times]}
        samples |= {name: {(): value} for name, value in counts.items()}
        samples |= _transactions(broker)
        samples |= _fetch_sessions(broker)
        samples |= defined(broker.store.measurements())

    async def _add_reads(self, broker: Broker, samples: Samples, *, reads_store: bool) -> None:
        """Add what has to be read from the store."""
        ends: Ends | None = None
        with self._part("topics"):
            known = {topic.name: topic for topic in await broker.all_topics()}
            self.recorder.forget_topics(known)
            ends = Ends(broker, known)
            if reads_store:
                samples[names.TOPICS] = {(): len(known)}
                samples[names.PARTITIONS] = {(): sum(topic.partitions for topic in known.values())}
                samples |= await archive(ends)
        if ends is not None:
            with self._part("groups"):
                samples |= await self._groups(broker, ends)
        with self._part("transactions"):
            samples |= await _open_transactions(broker)
        if reads_store:
            with self._part("store"):
                samples |= defined(await broker.read_measurements())

    async def _groups(self, broker: Broker, ends: Ends) -> Samples:
        """Return the metrics of the groups that this process coordinates."""
        config = broker.config
        groups = await broker.groups.own_groups()
        states = Counter(group.state.value for group in groups)
        named = groups[
            : share_of(config.metrics_max_groups, config.processes) if config.metrics_max_groups else 0
        ]
        samples: Samples = {
            names.GROUPS: {(state,): states[state] for state in GROUP_STATES},
            names.GROUP_MEMBERS: {(group.group_id,): len(group.members) for group in named},
        }
        if config.metrics_group_lag:
            committing = [group.group_id for group in named if not isinstance(group, ShareGroup)]
            samples |= await self._lags.groups(ends, committing)
        return samples

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Bound the reads in the block by PART_LIMIT_S, and count it if they fail."""
        with trio.move_on_after(PART_LIMIT_S) as limit:
            try:
                yield
            except* KafkaError as errors:
                self.recorder.errors[name] += 1
                fields = {"source": name, "error": errors.exceptions[0]}
                logger.debug("metrics: %(source)s cannot be read: %(error)s", fields)
        if limit.cancelled_caught:
            self.recorder.errors[name] += 1

    def _add_process(self, samples: Samples) -> None:
        from prometheus_client import ProcessCollector  # noqa: PLC0415  only if metrics are read

        for metric in ProcessCollector(registry=None).collect():
            for sample in metric.samples:
                if sample.name in METRICS:
                    samples[sample.name] = {(): sample.value}

    async def watch_event_loop(self) -> None:
        """Measure the delay of the event loop, until cancelled."""
        while True:
            due = trio.current_time() + LOOP_INTERVAL_S
            await trio.sleep_until(due)
            observe(self.recorder.event_loop_delay, max(trio.current_time() - due, 0.0))


def _transactions(broker: Broker) -> Samples:
    """Return the metrics of transactions that this process ends, has ended, or has found to hang."""
    transactions, counts = broker.transactions, broker.transactions.counts
    return {
        names.TRANSACTIONS_HANGING: {(): len(broker.hanging.found)},
        names.TRANSACTIONS_ENDING: {(): transactions.ending},
        names.TRANSACTION_MARKERS_WAITING: {(): transactions.waiting_markers},
        names.TRANSACTIONS_ENDED_TOTAL: {("commit",): counts.commits, ("abort",): counts.aborts},
        names.TRANSACTIONS_TIMED_OUT_TOTAL: {(): counts.timeouts},
        names.TRANSACTION_END_SECONDS: {(): [*counts.end_seconds]},
    }


def _fetch_sessions(broker: Broker) -> Samples:
    """Return the metrics of the fetch sessions of this process."""
    sessions = broker.fetch_sessions
    return {
        names.FETCH_SESSIONS: {(): len(sessions)},
        names.FETCH_SESSION_PARTITIONS: {(): sessions.partition_count},
        names.FETCH_SESSION_EVICTIONS_TOTAL: {(): sessions.evicted},
    }


async def _open_transactions(broker: Broker) -> Samples:
    """Return the metrics of the open transactions that this process has begun."""
    started_ms = await broker.transactions.open_since()
    oldest_s = max(broker.clock() - min(started_ms), 0) / 1000 if started_ms else 0.0
    return {
        names.TRANSACTIONS_OPEN: {(): len(started_ms)},
        names.TRANSACTIONS_OLDEST_SECONDS: {(): oldest_s},
    }


def defined(measurements: Measurements) -> Samples:
    """Return the values of a store whose metrics are defined."""
    return {name: dict(values) for name, values in measurements.items() if name in METRICS}
