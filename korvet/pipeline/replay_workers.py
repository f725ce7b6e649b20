"""Replays on Spark's workers: one task for each partition of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from korvet.pipeline.replay import Replay, Replayed, Selection, replay_partition


def replay_all(spark: SparkSession, replay: Replay, selections: Mapping[int, Selection]) -> list[Replayed]:
    """Replay these partitions; what became of each, sorted. Spark may repeat a task: nothing is doubled by that."""
    tasks = tuple(selections.items())
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    rows = numbers.mapInArrow(partial(_work, replay, tasks), "replayed string").collect()
    return sorted((Replayed.from_json(row.replayed) for row in rows), key=lambda each: each.partition)


def _work(
    replay: Replay, tasks: tuple[tuple[int, Selection], ...], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            replayed = replay_partition(replay, *tasks[number])
            yield pa.RecordBatch.from_arrays([pa.array([replayed.to_json()])], names=["replayed"])
