"""Who does the archive's work: Spark's workers, one task after the other on each core."""

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
from korvet.pipeline.connecting import Connecting


class SparkFailed(Exception):  # noqa: N818  it says what happened
    """The workers could not do a round: one of them died, for one. Trying again may help."""


class JavaEnded(Exception):  # noqa: N818  it says what happened
    """The Java that Spark runs in is no more."""


@define
class SparkWorkers:
    """The workers of a Spark session, in this process's Java or on a cluster.

    `start` is called for the session when there is something to do for the first time; `stop` has to be called at
    the end.
    """

    connecting: Connecting
    start: Callable[[], SparkSession]
    _spark: SparkSession | None = field(default=None, init=False)

    def stop(self) -> None:
        """End the session, if it was ever started."""
        if self._spark is not None:
            with suppress(Py4JError, OSError):  # Java may have ended by itself
                self._spark.stop()

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        with _told_errors():
            return max(1, self._session().sparkContext.defaultParallelism)

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        """Have each task's pieces written; all outcomes, in any order. Raises SparkFailed and JavaEnded."""
        task = partial(work, self.connecting, tuple(map(tuple, tasks)))
        with _told_errors():
            rows = self._session().range(0, len(tasks), 1, len(tasks)).mapInArrow(task, "outcome string")
            return [Outcome.from_json(row.outcome) for row in rows.collect()]

    def _session(self) -> SparkSession:
        if self._spark is None:
            # Spark takes Ctrl-C for itself, to cancel its jobs.
            handler = signal.getsignal(signal.SIGINT)
            self._spark = self.start()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)
        return self._spark


@contextmanager
def _told_errors() -> Iterator[None]:
    """Let what Spark and its Java raise be one of ours."""
    try:
        yield
    except (Py4JNetworkError, OSError) as error:
        raise JavaEnded("Java has ended, which Spark runs in; what was committed stays.") from error
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark could not do its work: {_reason(error)}") from error


def work(
    connecting: Connecting, tasks: Sequence[Sequence[Piece]], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a worker runs: the tasks of these numbers; outcomes come back as JSON."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for outcome in write_pieces(connecting, tasks[number]):
                yield pa.RecordBatch.from_arrays([pa.array([outcome.to_json()])], names=["outcome"])


def _reason(error: BaseException) -> str:
    """The line of Spark's long story that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = [line for line in lines if "No module named" in line or "Cannot run program" in line]
    if lacking:
        return (
            f"{lacking[0]} (korvet[spark] has to be where the workers' Python is; PYSPARK_PYTHON names that)"
        )
    telling = [line for line in lines if "Caused by:" in line or "exited unexpectedly" in line]
    return (telling or lines or [type(error).__name__])[0]
