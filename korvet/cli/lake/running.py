"""Helpers for running commands of `korvet lake`: end a job on signals, and convert Spark's errors to one line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import click


class Job(Protocol):
    """Work that consists of commits."""

    @property
    def stopping(self) -> threading.Event:
        """An event that `stop` sets."""

    def stop(self) -> None:
        """End the job after the current commit."""


@contextmanager
def ended_by_signals(job: Job) -> Iterator[None]:
    """Let SIGTERM and the first Ctrl-C end the job after the current commit, and a second Ctrl-C immediately."""

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
def errors_in_one_line() -> Iterator[None]:
    """Convert errors of Spark in the block to a ClickException of one line: no Java, invalid SQL, a failed task."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from korvet.pipeline.session import JavaNotFound, NoServer

    # pyspark also logs each such error, as JSON with the whole stack of the JVM.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except (JavaNotFound, NoServer) as error:
        raise click.ClickException(str(error)) from error
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise click.ClickException(lines[0] if lines else "Spark could not run it.") from error
