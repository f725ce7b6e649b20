"""What the commands of `korvet lake` have in common while they run: how they are ended, and what Spark says."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import click


class Job(Protocol):
    """Work that is done commit by commit."""

    @property
    def stopping(self) -> threading.Event:
        """Set once it has been told to stop."""

    def stop(self) -> None:
        """Have it end after the commit in hand."""


@contextmanager
def ended_by_signals(job: Job) -> Iterator[None]:
    """Let SIGTERM and the first Ctrl-C end the job after the commit in hand; the second Ctrl-C ends it at once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and job.stopping.is_set():
            raise KeyboardInterrupt
        job.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Around Spark: that there is no Java, and what is wrong with the SQL or a task, in one line."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from korvet.pipeline.session import JavaNotFound

    # pyspark also logs each such error, as JSON with the whole stack of the JVM.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except JavaNotFound as error:
        raise click.ClickException(str(error)) from error
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise click.ClickException(lines[0] if lines else "Spark could not run it.") from error
