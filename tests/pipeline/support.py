"""Use the data source as Spark does, without Spark: plan, pickle and read in this process."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import trio
from attrs import field, frozen

from korvet.client import Client, Record, open_client
from korvet.client.model import Produced
from korvet.pipeline.offsets import StreamOffset
from korvet.pipeline.source import BatchReader, KorvetSource, StreamReader
from korvet.protocol.compression import Codec
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

R = TypeVar("R")
Row = dict[str, Any]


@frozen
class Cluster:
    """A broker for tests, and the offset mapping of its topics."""

    bootstrap_servers: str
    is_dense: bool
    storage: str = field(default="")  # the Redis behind it, if any

    def run(self, work: Callable[[Client], Awaitable[R]]) -> R:
        """Run `work` with a client, and return its result."""

        async def main() -> R:
            async with open_client(self.bootstrap_servers) as client:
                return await work(client)

        return trio.run(main)

    def create(self, topic: str, *, partitions: int = 1, **settings: str) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.run(lambda client: client.create_topic(topic, partitions=partitions, settings=dotted))

    def produce(self, topic: str, records: Iterable[Record], *, codec: Codec = Codec.NONE) -> list[Produced]:
        return self.run(lambda client: client.produce(topic, list(records), codec=codec))

    def options(self, **options: object) -> dict[str, str]:
        """Return options in the form in which Spark passes them."""
        given = {"kafka.bootstrap.servers": self.bootstrap_servers}
        given |= {name.replace("__", "."): str(value) for name, value in options.items()}
        return {name.lower(): value for name, value in given.items()}

    def source(self, **options: object) -> KorvetSource:
        return KorvetSource(self.options(**options))

    def read(self, **options: object) -> list[Row]:
        """Return all rows of a batch read, by partition and offset."""
        return list(rows_of(batch_reader(self.source(**options))))

    def stream(self, **options: object) -> StreamReader:
        source = self.source(**options)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        return reader


def batch_reader(source: KorvetSource) -> BatchReader:
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


def rows_of(reader: BatchReader) -> Iterator[Row]:
    yield from rows_in(reader, reader.partitions())


def rows_in(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> Iterator[Row]:
    """Yield the rows of tasks. The reader and the partitions are pickled and unpickled, as for Spark's workers."""
    for partition in pickle.loads(pickle.dumps(list(partitions))):
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            assert isinstance(batch, pa.RecordBatch)
            batch.validate(full=True)
            yield from batch.to_pylist()


def trigger(reader: StreamReader, start: StreamOffset) -> tuple[StreamOffset, list[Row]]:
    """Run one trigger, and return its end and its rows."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, list(rows_in(reader, reader.partitions(start, end)))


def delete_records(cluster: Cluster, topic: str, offset: int) -> None:
    """Delete the records of partition 0 before an offset."""
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=10_000
    )
    answer = cluster.run(lambda client: client.request(request, DeleteRecordsResponse))
    assert [0] == [p.error_code for t in answer.topics for p in t.partitions]
