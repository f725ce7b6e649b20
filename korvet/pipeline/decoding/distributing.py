"""Run work on slices: as tasks on Spark's workers, or one after the other in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from attrs import frozen
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet.lake.errors import LakeError
from korvet.pipeline.archive_workers import JavaEnded, SparkFailed, SparkWorkers
from korvet.pipeline.decoding.registry import RegistryError

T = TypeVar("T")
Files = tuple[str, ...]
Work = Callable[[Files], T]


class Distribute(Protocol):
    """A way to run work on slices."""

    @property
    def parallelism(self) -> int:
        """The number of slices that run concurrently."""

    def __call__(self, work: Work[T], slices: Sequence[Files]) -> list[T]:
        """Return the result of `work` for each slice, in order. Raises what `work` raises."""


@frozen
class Here:
    """Runs one slice after the other in this process."""

    parallelism: int = 1

    def __call__(self, work: Work[T], slices: Sequence[Files]) -> list[T]:
        """Implement `Distribute`."""
        return [work(files) for files in slices]


@frozen
class OnSpark:
    """Runs a Spark task for each slice."""

    spark: SparkSession

    @property
    def parallelism(self) -> int:
        """The number of Spark's cores."""
        return max(1, self.spark.sparkContext.defaultParallelism)

    def __call__(self, work: Work[T], slices: Sequence[Files]) -> list[T]:
        """Implement `Distribute`. Also raises SparkFailed and JavaEnded."""
        if not slices:
            return []
        count = len(slices)
        run = partial(_run, work, tuple(slices))
        rows = self.spark.range(0, count, 1, count).mapInArrow(run, "number long, answer binary")
        try:
            answers = {row.number: pickle.loads(row.answer) for row in rows.collect()}  # noqa: S301  our own workers'
        except (Py4JNetworkError, OSError) as error:
            raise JavaEnded("Spark's Java process has ended; committed work is kept.") from error
        except (PySparkException, Py4JError) as error:
            raise SparkFailed(f"Spark could not do its work: {_reason(error)}") from error
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return [answers[number] for number in range(count)]


@frozen
class OnWorkers:
    """Runs Spark tasks in the session of these workers, which starts with the first work."""

    workers: SparkWorkers

    @property
    def parallelism(self) -> int:
        """The number of Spark's cores. Raises SparkFailed and JavaEnded."""
        return self.workers.cores

    def __call__(self, work: Work[T], slices: Sequence[Files]) -> list[T]:
        """Implement `Distribute`. Also raises SparkFailed and JavaEnded."""
        return OnSpark(self.workers.session())(work, slices)


def _run(
    work: Work[Any], slices: Sequence[Files], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the work of one Spark task. Errors that may be temporary are returned as values, without a traceback."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            try:
                answer = work(slices[number])
            except (RegistryError, LakeError, OSError) as error:
                answer = error
            columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(answer)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["number", "answer"])


def _reason(error: BaseException) -> str:
    """Return the line of Spark's error message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line or "exited unexpectedly" in line]
    return (telling or lines or [type(error).__name__])[-1]
