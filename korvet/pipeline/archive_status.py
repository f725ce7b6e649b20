"""The archive status of topics, and audits of their tables. Both use the tables and the broker, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TypeVar, TypeVarTuple

import trio
from attrs import frozen

from korvet.client import EARLIEST, LATEST, Client, Topic, TopicPartition
from korvet.client.isolation import READ_COMMITTED
from korvet.lake.chain import Stretch, missing_stretches, without
from korvet.lake.compacting import held_ranges
from korvet.lake.erasing import erased_places
from korvet.lake.errors import LakeError, RecreatedTopic, WrongTable
from korvet.lake.listing import tables_in
from korvet.lake.location import Location
from korvet.lake.parallel import AT_ONCE
from korvet.lake.retrying import retried
from korvet.lake.table import LakeTable
from korvet.lake.verification import absent, wrongs
from korvet.pipeline.archive_plan import Wanted, bounds_of
from korvet.pipeline.counting import is_dense
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.record_columns import decode_offsets
from korvet.protocol.errors import KafkaError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FETCH_BYTES = 8 * 1024 * 1024
# Limit of records that are counted per partition if offsets do not count records.
COUNTED_RECORDS = 100_000


@frozen
class PartitionStatus:
    """The archive status of one partition. Unknown values are None. `archived_up_to` is None without a table."""

    topic: str
    partition: int
    log_start_offset: int | None
    archived_up_to: int | None
    last_stable_offset: int | None
    #: Number of records that are not archived yet, a lower bound if `more` is True.
    lag_records: int | None
    more: bool
    #: Seconds for which the oldest of them has been waiting.
    lag_s: float | None


async def status(
    client: Client, lake: Location, wanted: Wanted | None
) -> tuple[list[PartitionStatus], dict[str, str]]:
    """Return the status of all partitions of the wanted topics, or of those that have an archive, and failures.

    Failures are the topics whose archive is of an earlier topic of the same name, with the reason. Raises LakeError
    and KafkaError.
    """
    topics = await client.topics()
    tables = {name for name in tables_in(lake) if wanted is None or name in topics}
    chosen = tables if wanted is None else {topic.name for topic in wanted.chosen(topics)[0]}
    fetcher = Fetcher(client, READ_COMMITTED, dict(topics))
    rows: list[PartitionStatus] = []
    failures: dict[str, str] = {}
    for name in sorted(chosen):
        topic = topics.get(name)
        ends: dict[int, int] = {}
        if name in tables:
            try:
                ends = LakeTable.open(lake, name, None if topic is None else topic.topic_id).archived_up_to
            except RecreatedTopic as error:
                failures[name] = str(error)
                continue
            except WrongTable:
                if wanted is not None:
                    raise
                continue  # a lake may also contain typed tables, and others
        if topic is None:
            rows += [
                PartitionStatus(name, partition, None, end, None, None, more=False, lag_s=None)
                for partition, end in sorted(ends.items())
            ]
        else:
            rows += await _of_topic(client, fetcher, topic, ends)
    return rows, failures


async def _of_topic(
    client: Client, fetcher: Fetcher, topic: Topic, ends: Mapping[int, int]
) -> list[PartitionStatus]:
    """Return the status of each partition of a topic whose archive ends at these offsets."""
    rows = []
    for partition, bounds in (await bounds_of(client, topic)).items():
        archived = ends.get(partition)
        start = bounds.log_start_offset if archived is None else max(archived, bounds.log_start_offset)
        tp = TopicPartition(topic.name, partition)
        lag = await _lag(fetcher, tp, start, bounds.last_stable_offset)
        rows.append(
            PartitionStatus(
                topic.name, partition, bounds.log_start_offset, archived, bounds.last_stable_offset, *lag
            )
        )
    return rows


async def _lag(fetcher: Fetcher, tp: TopicPartition, start: int, end: int) -> tuple[int, bool, float | None]:
    """Return the number of records in [start, end), True if there are more, and for how many seconds the first waits.

    The seconds are None if there is no record.
    """
    count, position = 0, start
    waiting_ms: int | None = None
    while position < end and count < COUNTED_RECORDS:
        fetched = await fetcher.fetch(tp, position, max_bytes=FETCH_BYTES, max_wait_ms=0)
        if fetched.next_offset == position:
            break
        if waiting_ms is None and fetched.batches:
            waiting_ms = fetched.batches[0].base_timestamp
        if is_dense(end) and waiting_ms is not None:
            count, position = end - start, end
            break
        count += len(decode_offsets(fetched.batches, start=position, end=end))
        position = fetched.next_offset
    lag_s = None if waiting_ms is None else max(0.0, time.time() - waiting_ms / 1000)
    return count, position < end and count >= COUNTED_RECORDS, lag_s


# --- Audit ------------------------------------------------------------------------------------------------


@frozen
class Finding:
    """A fault that an audit has found: the offsets [start, end), and what is wrong with them.

    `topic` is the name of the table. The partition is -1 if a file has several ones, or none is known.
    """

    topic: str
    partition: int
    start: int
    end: int
    what: str

    def __str__(self) -> str:
        if self.partition < 0:
            return f"{self.topic}: {self.what}"
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end - 1}: {self.what}"


def audit_table(
    table: LakeTable, *, checksums: bool = False, on_progress: Callable[[int], None] = lambda _: None
) -> list[Finding]:
    """Audit a table without the broker: find gaps between commits, and committed records that the files do not have.

    With `checksums`, read all files completely, and call `on_progress` with the bytes of each file.
    """
    findings = []
    for partition, number in table.archived_up_to.items():
        start = table.start(partition)
        if start is None:
            continue
        recorded = [Stretch(each.start, each.end) for each in table.ranges_of(partition).items]
        recorded += [Stretch(gap.start, gap.end) for gap in table.gaps if gap.partition == partition]
        oldest = min((stretch.start for stretch in recorded), default=number)
        # The Delta log may no longer have the oldest commits. Only the names of files describe their ranges.
        unrecorded = without(Stretch(max(start, oldest), number), recorded)
        findings += [_finding(table, partition, stretch, "no commit contains them") for stretch in unrecorded]
        lost = missing_stretches(table, partition)
        findings += [
            _finding(table, partition, stretch, "archived, and not in the table's files") for stretch in lost
        ]
        findings += _miscounted(table, partition)
    wrong = [*absent(table), *(wrongs(table, on_progress) if checksums else ())]
    return findings + [
        Finding(table.topic, each.partition, each.start, each.end, each.what) for each in wrong
    ]


def _miscounted(table: LakeTable, partition: int) -> list[Finding]:
    """Find ranges whose files, by their statistics, do not have the number of rows that was committed."""
    ranges = table.ranges_of(partition)
    findings = []
    for held in held_ranges(table, partition):
        counts = [file.count for file in held.files if file.count is not None]
        inside = ranges.within(held.start, held.end)
        committed = sum(each.count for each in inside)
        # The number of rows is unknown for ranges whose commits the Delta log no longer has.
        is_known = len(counts) == len(held.files) and inside and inside[0].start <= held.start
        if is_known and sum(counts) != committed:
            what = f"{sum(counts)} rows, where {committed} were committed"
            findings.append(Finding(table.topic, partition, held.start, held.end, what))
    return findings


async def audit_hot(client: Client, table: LakeTable, topic: Topic) -> list[Finding]:
    """Compare the archived offsets that the broker still has with the table, and find those that only one has.

    Reads all these offsets from both. Raises KafkaError.
    """
    findings = []
    fetcher = Fetcher(client, READ_COMMITTED, {topic.name: topic})
    tps = [TopicPartition(topic.name, each.partition) for each in topic.partitions]
    starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST), isolation_level=READ_COMMITTED)
    for tp in tps:
        number, first = table.archived_up_to.get(tp.partition), table.start(tp.partition)
        if number is None or first is None:
            continue
        if starts[tp].offset > number:
            stretch = Stretch(number, starts[tp].offset)
            findings.append(_finding(table, tp.partition, stretch, "trimmed before they were archived"))
        if ends[tp].offset < number:
            stretch = Stretch(ends[tp].offset, number)
            findings.append(_finding(table, tp.partition, stretch, "archived, and the log ends before them"))
        findings += await _compared(fetcher, table, tp, max(starts[tp].offset, first), number)
    return findings


async def _compared(
    fetcher: Fetcher, table: LakeTable, tp: TopicPartition, start: int, end: int
) -> list[Finding]:
    findings: list[Finding] = []
    position = start
    erased: set[int] | None = None
    while position < end and not findings:
        fetched = await fetcher.fetch(tp, position, max_bytes=FETCH_BYTES, max_wait_ms=0)
        if fetched.next_offset == position:
            break
        upto = min(fetched.next_offset, end)
        hot = set(decode_offsets(fetched.batches, start=position, end=upto).tolist())
        found = await _in_thread(table.offsets_of, tp.partition, position, upto)
        cold = set(found.tolist())
        if hot - cold:
            if erased is None:
                places = erased_places(table).get(tp.partition)
                erased = set() if places is None else set(places.tolist())
            hot -= erased - cold
        for offsets, what in (
            (hot - cold, "on the broker, and not in the table"),
            (cold - hot, "in the table only"),
        ):
            if offsets:
                stretch = Stretch(min(offsets), max(offsets) + 1)
                findings.append(_finding(table, tp.partition, stretch, f"{len(offsets)} are {what}"))
        position = upto
    return findings


def _finding(table: LakeTable, partition: int, stretch: Stretch, what: str) -> Finding:
    return Finding(table.topic, partition, stretch.start, stretch.end, what)


async def audit(
    client: Client | None,
    lake: Location,
    topics: Sequence[str],
    opened: Mapping[str, LakeTable] = MappingProxyType({}),
    *,
    checksums: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> tuple[dict[str, LakeTable], list[Finding], dict[str, str]]:
    """Audit topics' tables, a few at a time. With a `client`, also compare them with the broker.

    `opened` are tables that need not be opened again. With `checksums`, all files are read, and `on_progress` is called
    in a thread. Return the audited tables by topic, the findings, and the errors of topics that could not be audited.
    """
    audited: dict[str, LakeTable] = {}
    findings: dict[str, list[Finding]] = {topic: [] for topic in topics}
    failures: dict[str, str] = {}
    known = {} if client is None else await client.topics()
    limit = trio.Semaphore(AT_ONCE)

    async def audit_one(topic: str) -> None:
        async with limit:
            try:
                table = opened.get(topic)
                if table is None:
                    table = await _in_thread(retried, partial(LakeTable.open, lake, topic))
                audited_offline = partial(audit_table, table, checksums=checksums, on_progress=on_progress)
                findings[topic] += await _in_thread(audited_offline)
                if client is not None:
                    described = known.get(topic) or await client.topic(topic)
                    table.check(described.topic_id)
                    findings[topic] += await audit_hot(client, table, described)
                audited[topic] = table
            except (LakeError, KafkaError) as error:
                failures[topic] = str(error)

    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(audit_one, topic)
    return (
        _in_order(audited, topics),
        list(chain.from_iterable(findings.values())),
        _in_order(failures, topics),
    )


async def _in_thread(work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function that reads a table. An interrupt does not wait for it."""
    return await trio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True)


def _in_order(by_topic: Mapping[str, T], topics: Sequence[str]) -> dict[str, T]:
    return {topic: by_topic[topic] for topic in topics if topic in by_topic}
