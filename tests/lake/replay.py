"""Read a table with only the Delta protocol and DuckDB: replay its log, read its files.

It uses no code of korvet or deltalake, so it verifies both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import duckdb


class Row(NamedTuple):
    """The columns by which archived records are compared."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def live_files(table: Path) -> list[str]:
    """Return the files that the log's commits have added and not removed."""
    alive: dict[str, None] = {}
    commits = sorted((table / "_delta_log").glob("*.json"))
    assert list(range(len(commits))) == [int(commit.stem) for commit in commits], "the log is not whole"
    for commit in commits:
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                assert action["add"]["path"] not in alive, "a file was added twice"
                alive[action["add"]["path"]] = None
            elif "remove" in action:
                del alive[action["remove"]["path"]]
    return [str(table / path) for path in alive]


def numbers(table: Path) -> dict[str, int]:
    """Return the last version of each application id."""
    found = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action: dict[str, Any] = json.loads(line)
            if "txn" in action:
                found[action["txn"]["appId"]] = action["txn"]["version"]
    return found


def rows_of(table: Path) -> list[Row]:
    """Return all rows of the last version by partition and offset, including duplicates."""
    files = live_files(table)
    if not files:
        return []
    with duckdb.connect() as connection:
        found = connection.execute(
            'select topic, "partition", "offset", timestamp_ms, key, value, headers '
            'from read_parquet(?, hive_partitioning = false) order by "partition", "offset"',
            [files],
        ).fetchall()
    return [Row._make((*row[:6], headers_of(row[6]))) for row in found]


def headers_of(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())
