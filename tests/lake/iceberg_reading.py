"""Read an Iceberg table with DuckDB, which uses no code of korvet or PyIceberg."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb

from tests.lake.replay import Row, headers_of


@cache
def extension(name: str) -> Path:
    """Return the path of one of DuckDB's extensions, which is installed as a wheel."""
    return next(Path(str(files(f"duckdb_extension_{name}"))).rglob("*.duckdb_extension"))


def newest_metadata(table: Path) -> str:
    """Return the path of a mirror's newest metadata, v10.metadata.json or 00010-<uuid>.metadata.json."""
    versions = (table / "_iceberg" / "metadata").glob("*.metadata.json")
    return str(max(versions, key=lambda path: int(re.match(r"v?(\d+)", path.name)[1])))


def reading(table: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, in which {table} stands for the Iceberg table: its folder, or a file of metadata."""
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            connection.execute(f"load '{extension(name)}'")
        return connection.execute(query.format(table=f"iceberg_scan('{table}')")).fetchall()


def rows_of_iceberg(table: str) -> list[Row]:
    """Return all rows of an archive by partition and offset."""
    found = reading(
        table,
        'select topic, "partition", "offset", timestamp_ms, key, value, headers '
        'from {table} order by "partition", "offset"',
    )
    return [Row._make((*row[:6], headers_of(row[6]))) for row in found]
