"""The output of the commands: tables, JSON, and progress at a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import click

PROGRESS_INTERVAL_S = 0.2
DASH = "-"  # in a table, for a value that is absent


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def dashed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row for a table."""
    return {name: DASH if value in (None, "") else value for name, value in row.items()}


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print a table with aligned columns and their names in capitals. Numbers are aligned to the right."""
    texts = [[column.upper(), *(str(row[column]) for row in rows)] for column in columns]
    for index, column in enumerate(columns):
        width = max(map(len, texts[index]))
        numbers = bool(rows) and all(isinstance(row[column], int) for row in rows)
        texts[index] = [text.rjust(width) if numbers else text.ljust(width) for text in texts[index]]
    for line in zip(*texts, strict=True):
        click.echo("  ".join(line).rstrip())


class Progress:
    """A counter in one line on stderr, rewritten a few times a second, only at a terminal.

    It first appears after half a second, so that short work shows nothing. It is cleared at the end.
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
    """A callback that adds the number of each call to a total, and shows the total."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._total = 0

    def __call__(self, count: int) -> None:
        self._total += count
        self._progress.show(self._total)
