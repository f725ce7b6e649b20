"""Write a streaming query's rows exactly once: each task of a batch writes in a transaction that names the batch.

The transactional id is `<id>-<task>`. The transaction commits an offset of the group with the same name, whose metadata
names the query, the batch, and what the task wrote. So a task that Spark runs again, in another process or after a
restart of the query, fences the attempt before it, and finds whether that one has committed.

This needs that a batch which is run again gives each task the same rows. Sources with offsets do, unless the query was
changed. A task whose rows differ from those that were committed fails, rather than writing some of them twice.

Tasks commit one after the other: readers see each task's rows all or not at all, but not those of the batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa
from attrs import asdict, frozen
from pyspark import TaskContext

from korvet.client import Client, OffsetAndMetadata, TopicPartition, Transaction
from korvet.lake.encoding import column_of, lengths
from korvet.pipeline.offsets import WrongOption

# Spark sets these properties for the jobs of a streaming batch.
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class BatchChanged(ValueError):  # noqa: N818  names the condition
    """A task got other rows than when it committed the batch."""


@frozen
class Task:
    """A task of a streaming batch. `partition` is its number in the batch."""

    query: str
    batch: int
    partition: int


@frozen
class Amount:
    """A number of rows, and the bytes of their keys and values."""

    rows: int = 0
    size: int = 0

    def plus(self, table: pa.Table) -> Amount:
        """Return the sum with a table, which does not depend on how Spark divides rows into tables."""
        columns = [column_of(table, name) for name in ("key", "value") if name in table.column_names]
        size = sum(int(lengths(column.cast(pa.binary())).sum()) for column in columns)
        return Amount(self.rows + len(table), self.size + size)


@frozen
class Mark:
    """The last batch that a task has committed, and what it wrote."""

    query: str
    batch: int
    rows: int
    size: int

    def is_of(self, task: Task) -> bool:
        """Return True if the task has committed its batch."""
        return (self.query, self.batch) == (task.query, task.batch)


def current_task() -> Task:
    """Return the task that runs in this process. Raises WrongOption outside of streaming queries."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    batch = context.getLocalProperty(BATCH) if context is not None else None
    if context is None or query is None or batch is None:
        raise WrongOption("kafka.transactional.id is for streaming queries, and this process runs none")
    return Task(query, int(batch), context.partitionId())


async def last_mark(client: Client, group_id: str) -> Mark | None:
    """Return the newest mark of a task, after its transactions have ended. Raises KafkaError."""
    committed = await client.committed(group_id, require_stable=True)
    marks = [_read(each.metadata) for each in committed.values()]
    return max((mark for mark in marks if mark is not None), key=lambda mark: mark.batch, default=None)


async def set_mark(transaction: Transaction, tp: TopicPartition, task: Task, amount: Amount) -> None:
    """Let the transaction commit the task's mark. `tp` is a partition that exists. Raises KafkaError."""
    mark = Mark(task.query, task.batch, amount.rows, amount.size)
    offset = OffsetAndMetadata(task.batch, metadata=json.dumps(asdict(mark)))
    await transaction.commit_offsets(transaction.transactional_id, {tp: offset})


def check_repeated(mark: Mark, task: Task, tables: Iterable[pa.Table]) -> None:
    """Read the rows of a task that has committed its batch. Raises BatchChanged if they are others."""
    amount = Amount()
    for table in tables:
        amount = amount.plus(table)
    if amount != Amount(mark.rows, mark.size):
        raise BatchChanged(
            f"Task {task.partition} has committed batch {task.batch} with {mark.rows} rows ({mark.size} bytes). "
            f"Spark has run the batch again and gave it {amount.rows} ({amount.size} bytes): the tasks divide the "
            "batch differently, for example because of another default parallelism. Start the query as before."
        )


def _read(metadata: str) -> Mark | None:
    try:
        return Mark(**json.loads(metadata))
    except (ValueError, TypeError):
        return None  # of another program
