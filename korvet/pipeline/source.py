"""The data source `korvet`: the classes that Spark calls.

On the driver's machine, Spark starts Python processes for planning: one for each batch query, and one for each stream,
which runs as long as the stream. Tasks call `read` and `write` in Spark's workers. Spark pickles the objects that it
sends between these processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import trio
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from korvet.client import Client
from korvet.pipeline.counting import Counts, all_dense, proportional
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.offsets import Offsets, StreamOffset, TopicIds, WrongOption, from_json, to_json
from korvet.pipeline.options import NO_TABLES, ReadOptions, WriteOptions, read_options, write_options
from korvet.pipeline.planning import (
    earliest_offsets,
    find_partitions,
    latest_offsets,
    ranges_between,
    recreated,
    resolve,
)
from korvet.pipeline.pushing import Conditions
from korvet.pipeline.splitting import split
from korvet.pipeline.topic_reading import Range, RangePartition, arrow_schema, read_batches
from korvet.pipeline.topic_writing import BatchWriter, StreamWriter, check_columns, check_topic


class KorvetSource(DataSource):
    """The data source of `format("korvet")`, for `read`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "korvet"

    def schema(self) -> StructType:
        """Return the columns. Raises WrongOption for invalid options, so that `load` fails, and for CREATE TABLE."""
        if (
            "provider" in self.options
        ):  # properties of a table in the catalog, which Spark adds to its options
            raise WrongOption(f"a topic cannot be a table of the catalog. {NO_TABLES}")
        return source_schema(_either_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        try:
            options = read_options(self.options, streaming=True)
            _check_schema(schema, options)
        except WrongOption as error:
            return RefusedStream(error)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001  Spark's signature
        if overwrite:
            raise WrongOption("a topic cannot be overwritten; accepted is mode append")
        return BatchWriter(_checked_for_writing(self.options, schema, streaming=False))

    def streamWriter(  # noqa: N802  Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001  in complete mode all rows are sent each time, as with Spark's own
    ) -> StreamWriter:
        return StreamWriter(_checked_for_writing(self.options, schema, streaming=True))


class BatchReader(DataSourceReader):
    """A batch read: planned once, and read in tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.conditions = Conditions()

    @property
    def pushFilters(self) -> PushFilters:  # noqa: N802  Spark's name
        return PushFilters(self)

    def partitions(self) -> list[InputPartition]:
        return [RangePartition(each) for each in trio.run(self._plan)] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.options, partition)

    async def _plan(self) -> list[Range]:
        options = self.options
        async with options.connecting.open() as client:
            tps, _ = await find_partitions(client, options.subscription)
            start = await resolve(client, options, "starting", tps)
            end = await resolve(client, options, "ending", tps)
            ranges = await ranges_between(client, options, start, end)
            ranges = await self.conditions.restrict(client, ranges, options.isolation_level)
            return await split(Fetcher(client, options.isolation_level), options, ranges, Counts())


class PushFilters:
    """The method `pushFilters` of a reader: it notes the conditions, and leaves them all to Spark as well."""

    # Spark refuses a reader that overrides the method, unless spark.sql.python.filterPushdown.enabled is true.
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self.reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self.reader.conditions = Conditions.of(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, planned for each trigger. It stores a cache and the time of the last trigger; Spark stores offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._target: Offsets | None = None  # with Trigger.AvailableNow: the offsets at which the run ends
        self._latest: Offsets = {}
        self._topic_ids: TopicIds = {}
        self._counts = Counts()
        self._last_trigger = time.monotonic()

    def initialOffset(self) -> StreamOffset:  # noqa: N802  Spark's name
        return to_json(*trio.run(self._initial))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Return the read limit of the options. If both are set, `latestOffset` checks the other one."""
        # Spark supports only one limit.
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802  Spark's name
        self, start: StreamOffset, limit: ReadLimit
    ) -> StreamOffset:
        """Return the end of the next trigger: `start` if there are no records, or not enough."""
        return to_json(*trio.run(self._next, *from_json(start), not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> StreamOffset | None:  # noqa: N802  Spark's name
        return to_json(self._latest, self._topic_ids) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = trio.run(self._find_latest)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        return [RangePartition(each) for each in trio.run(self._plan, *from_json(start), *from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.options, partition)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the options, since tasks need no other state."""
        return {"options": self.options}

    async def _initial(self) -> tuple[Offsets, TopicIds]:
        options = self.options
        async with options.connecting.open() as client:
            tps, topic_ids = await find_partitions(client, options.subscription)
            return await resolve(client, options, "starting", tps), topic_ids

    async def _find_latest(self) -> Offsets:
        async with self.options.connecting.open() as client:
            tps, _ = await find_partitions(client, self.options.subscription, missing_ok=True)
            return await latest_offsets(client, self.options, tps)

    async def _next(
        self,
        start: Offsets,
        start_ids: TopicIds,
        limited: bool,  # noqa: FBT001  trio.run passes no names
    ) -> tuple[Offsets, TopicIds]:
        options = self.options
        async with options.connecting.open() as client:
            tps, topic_ids = await find_partitions(client, options.subscription, missing_ok=True)
            self._latest, self._topic_ids = await latest_offsets(client, options, tps), topic_ids
            end = await self._end(
                client, _without(start, recreated(options, start_ids, topic_ids)), limited=limited
            )
            return (start, start_ids) if end is None else (end, topic_ids)

    async def _end(self, client: Client, start: Offsets, *, limited: bool) -> Offsets | None:
        """Return the end of the next trigger, or None if there are not enough records."""
        options = self.options
        ends = self._ends(start)
        if not limited:
            return ends
        earliest = await earliest_offsets(client, ends)
        # New partitions start at the log start, and so do those whose starting offset was deleted.
        starts = {tp: min(max(start.get(tp, 0), earliest[tp]), end) for tp, end in ends.items()}
        fetcher = Fetcher(client, options.isolation_level)
        if not await self._is_enough(fetcher, starts, ends):
            return None
        self._last_trigger = time.monotonic()
        maximum = options.max_offsets_per_trigger
        if maximum is None or sum(end - starts[tp] for tp, end in ends.items()) <= maximum:
            return ends
        if all_dense(ends.values()):
            return proportional(starts, ends, maximum)
        self._counts.begin(starts, ends)
        return await self._counts.first(fetcher, maximum)

    def _ends(self, start: Offsets) -> Offsets:
        """Return the ends of the logs, or the target of Trigger.AvailableNow where that is lower.

        An end before the start means that records were lost, which `partitions` reports.
        """
        target, latest = self._target, self._latest
        if target is None:
            return dict(latest)
        # The next run reads partitions that were created since then.
        known = {tp: max(target.get(tp, 0), start.get(tp, 0)) for tp in (*target, *start)}
        return {tp: min(known[tp], end) for tp, end in latest.items() if tp in known}

    async def _is_enough(self, fetcher: Fetcher, starts: Offsets, ends: Offsets) -> bool:
        """Return True if minOffsetsPerTrigger is reached, or does not apply.

        It does not apply after maxTriggerDelay, and with Trigger.AvailableNow.
        """
        minimum = self.options.min_offsets_per_trigger
        if minimum is None or self._target is not None:
            return True
        if time.monotonic() - self._last_trigger >= self.options.max_trigger_delay_s:
            return True
        if sum(end - starts[tp] for tp, end in ends.items()) < minimum:
            return False
        if all_dense(ends.values()):
            return True
        self._counts.begin(starts, ends)
        await self._counts.at_least(fetcher, dict.fromkeys(starts, minimum))
        return sum(count.number for count in self._counts.counts.values()) >= minimum

    async def _plan(
        self, start: Offsets, start_ids: TopicIds, end: Offsets, end_ids: TopicIds
    ) -> list[Range]:
        options = self.options
        async with options.connecting.open() as client:
            _, now = await find_partitions(client, options.subscription, missing_ok=True)
            gone = recreated(options, end_ids, now)
            end = _without(end, gone)
            start = _without(start, gone | recreated(options, start_ids, now))
            ranges = await ranges_between(client, options, start, end)
            return await split(Fetcher(client, options.isolation_level), options, ranges, self._counts)


class RefusedStream(DataSourceStreamReader):
    """A stream with invalid options: the first request for offsets raises the error.

    `streamReader` cannot raise it, because Spark's runner would then fail to stop the missing reader, and would report
    that error instead.
    """

    def __init__(self, error: WrongOption) -> None:
        self.error = error

    def initialOffset(self) -> StreamOffset:  # noqa: N802  Spark's name
        raise self.error

    def latestOffset(self, *_: object) -> StreamOffset:  # noqa: N802  Spark's name
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  Spark's signature
        raise self.error


def _without(offsets: Offsets, topics: set[str]) -> Offsets:
    return {tp: offset for tp, offset in offsets.items() if tp.topic not in topics}


def source_schema(options: ReadOptions) -> StructType:
    """Return the columns of Spark's Kafka source, and `timestamp_ms` if the options include it."""
    return from_arrow_schema(arrow_schema(options))


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition in a task. Yield nothing for a partition without a range."""
    # Spark requires at least one partition, so a plan without records has one without a range.
    if not isinstance(partition, RangePartition) or partition.range is None:
        return iter(())
    return read_batches(options, partition.range)


def _either_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options if they are valid for a stream or for a batch read. Spark does not report which one it is."""
    try:
        return read_options(options, streaming=True)
    except WrongOption:
        return read_options(options, streaming=False)


def _checked_for_writing(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> WriteOptions:
    """Validate and return the options of a write. Raises WrongOption, and KafkaError for the topic."""
    checked = write_options(options, streaming=streaming)
    check_columns(schema, checked)
    check_topic(checked)
    return checked


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    expected = source_schema(options)
    if schema != expected:
        raise WrongOption(f"the source's columns are {expected.simpleString()}; no other schema is accepted")
