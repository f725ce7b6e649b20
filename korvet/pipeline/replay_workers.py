"""Run replays on Spark's workers: one task per partition of the archive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import trio
from pyspark.sql import SparkSession

from korvet.client import Client
from korvet.pipeline.replay import Replay, Replayed, Selection, left_of, replay_partition, target_of
from korvet.protocol.errors import KafkaError

LOOK_S = 1.0
# The pause between two progress checks, relative to the duration of a check, which limits their load.
LOOK_SHARE = 20


def replay_all(
    spark: SparkSession,
    replay: Replay,
    selections: Mapping[int, Selection],
    on_progress: Callable[[float], None] = lambda _: None,
) -> list[Replayed]:
    """Replay these partitions. Return the result of each, sorted. Spark may repeat a task: this duplicates nothing.

    `on_progress` is called from time to time, in another thread, with the completed fraction of offsets, from 0 to 1,
    and at the end if no partition failed.
    """
    tasks = tuple(selections.items())
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    with _watched(replay, selections, on_progress):
        rows = numbers.mapInArrow(partial(_work, replay, tasks), "replayed string").collect()
    replayed = sorted((Replayed.from_json(row.replayed) for row in rows), key=lambda each: each.partition)
    if not replay.dry_run and not any(each.error for each in replayed):
        on_progress(1.0)
    return replayed


def _work(
    replay: Replay, tasks: tuple[tuple[int, Selection], ...], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            replayed = replay_partition(replay, *tasks[number])
            yield pa.RecordBatch.from_arrays([pa.array([replayed.to_json()])], names=["replayed"])


@contextmanager
def _watched(
    replay: Replay, selections: Mapping[int, Selection], on_progress: Callable[[float], None]
) -> Iterator[None]:
    """Report progress from the committed offsets of a replay's groups while the block runs; ignore errors."""
    total = sum(selection.end - selection.start for selection in selections.values())
    ended = threading.Event()

    async def look() -> None:
        async with replay.client() as client:
            while not ended.is_set():
                began = trio.current_time()
                left = await left_in_all(client, replay, selections)
                on_progress(1 - left / total)
                await trio.sleep(max(LOOK_S, LOOK_SHARE * (trio.current_time() - began)))

    async def until_ended(nursery: trio.Nursery) -> None:
        await trio.to_thread.run_sync(ended.wait, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_ended, nursery)
            while True:
                try:
                    await look()
                except (KafkaError, OSError):
                    await trio.sleep(LOOK_S)

    thread = threading.Thread(target=trio.run, args=(main,), name="replay progress", daemon=True)
    if total and not replay.dry_run:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


async def left_in_all(client: Client, replay: Replay, selections: Mapping[int, Selection]) -> int:
    """Return the number of selected offsets that remained at the last checkpoint. Raises KafkaError."""
    left = 0
    for partition, selection in selections.items():
        tp = await target_of(client, replay, partition)
        noted = left_of((await client.committed(replay.group_id(partition), [tp])).get(tp), selection)
        left += noted.end - noted.start
    return left
