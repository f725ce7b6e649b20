"""What the commands print: tables, JSON, and progress for who waits at a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Self

import click

PROGRESS_INTERVAL_S = 0.2


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Aligned columns under their names in capitals; numbers to the right."""
    texts = [[column.upper(), *(str(row[column]) for row in rows)] for column in columns]
    for index, column in enumerate(columns):
        width = max(map(len, texts[index]))
        numbers = bool(rows) and all(isinstance(row[column], int) for row in rows)
        texts[index] = [text.rjust(width) if numbers else text.ljust(width) for text in texts[index]]
    for line in zip(*texts, strict=True):
        click.echo("  ".join(line).rstrip())


class Progress:
    """One line on stderr that counts up, rewritten a few times a second, and only on a terminal.

    Lets half a second pass first, so that short work shows nothing; what it wrote is gone at the end.
    """

    def __init__(self, verb: str, *, unit: str = "records") -> None:
        self._verb, self._unit = verb, unit
        self._started = time.monotonic()
        self._next = self._started + 0.5
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def show(self, count: int, total: int | None = None) -> None:
        now = time.monotonic()
        if not self._terminal or now < self._next:
            return
        self._next = now + PROGRESS_INTERVAL_S
        self._shown = True
        of = f" of {total:,}" if total is not None else ""
        rate = count / (now - self._started)
        sys.stderr.write(f"\r\x1b[K{self._verb} {count:,}{of} {self._unit}, {rate:,.0f}/s")
        sys.stderr.flush()

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Counting:
    """Shows how much there was so far, given how much there is with each call."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._total = 0

    def __call__(self, count: int) -> None:
        self._total += count
        self._progress.show(self._total)
