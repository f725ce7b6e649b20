"""Run archive tasks on Spark's workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import pyarrow as pa
from attrs import define, field
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet.pipeline.archive_task import Outcome, Piece, write_pieces
from korvet.pipeline.cluster import Connecting


class SparkFailed(Exception):  # noqa: N818  the name states what happened
    """The workers failed in a round, for example because one of them died. Retrying may help."""


class JavaEnded(Exception):  # noqa: N818  the name states what happened
    """The Java process of Spark has ended."""


@define
class SparkWorkers:
    """The workers of a Spark session, in this process's Java or on a cluster.

    `start` creates the session when there is work for the first time. Call `stop` at the end.
    """

    connecting: Connecting
    start: Callable[[], SparkSession]
    _spark: SparkSession | None = field(default=None, init=False)
    _starting: threading.Lock = field(factory=threading.Lock, init=False)

    def stop(self) -> None:
        """End the session, if it was ever started."""
        if self._spark is not None:
            with suppress(Py4JError, OSError):  # Java may have ended by itself
                self._spark.stop()

    @property
    def cores(self) -> int:
        """The number of tasks that run concurrently."""
        with _converted_errors():
            return max(1, self.session().sparkContext.defaultParallelism)

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        """Write each task's pieces. Return all outcomes, in any order. Raises SparkFailed and JavaEnded."""
        task = partial(work, self.connecting, tuple(map(tuple, tasks)))
        with _converted_errors():
            rows = self.session().range(0, len(tasks), 1, len(tasks)).mapInArrow(task, "outcome string")
            return [Outcome.from_json(row.outcome) for row in rows.collect()]

    def session(self) -> SparkSession:
        """Return the session, which the first call creates. Several threads may call it."""
        with self._starting:
            if self._spark is None:
                # Spark installs its own handler for Ctrl-C, which cancels jobs; restore ours.
                handler = signal.getsignal(signal.SIGINT)
                self._spark = self.start()
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, handler)
            return self._spark


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Convert errors of Spark and Java to SparkFailed and JavaEnded."""
    try:
        yield
    except (Py4JNetworkError, OSError) as error:
        raise JavaEnded("Spark's Java process has ended; committed work is kept.") from error
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark could not do its work: {_reason(error)}") from error


def work(
    connecting: Connecting, tasks: Sequence[Sequence[Piece]], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the tasks of these numbers on a worker, and yield outcomes as JSON."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for outcome in write_pieces(connecting, tasks[number]):
                yield pa.RecordBatch.from_arrays([pa.array([outcome.to_json()])], names=["outcome"])


def _reason(error: BaseException) -> str:
    """Return the line of Spark's error message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = [line for line in lines if "No module named" in line or "Cannot run program" in line]
    if lacking:
        return f"{lacking[0]} (install korvet[spark] for the workers' Python; PYSPARK_PYTHON names it)"
    telling = [line for line in lines if "Caused by:" in line or "exited unexpectedly" in line]
    return (telling or lines or [type(error).__name__])[0]
