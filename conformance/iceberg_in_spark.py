"""The Iceberg mirror in Spark 4.1 with Iceberg's own runtime: the rows of the Delta tables, row for row.

The tables are an archive with late records, and typed tables that are partitioned by a column of each type, which their
files lack, or by buckets. pip installs pyspark 4.1 once into a virtual environment in the cache folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from conformance.apache_kafka import jars
from conformance.iceberg_program import plain
from conformance.part import RUN_LIMIT_S, Result, Target, Unavailable
from conformance.spark_connector import environment
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original, iceberg_name
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.lake.table import LakeTable
from tests.lake.support import TOPIC, TOPIC_ID, lake, written
from tests.lake.test_mirror_typed import COLUMNS, VALUES, grown, mirror, typed
from tests.pipeline.decoding import Lake

POM = Path(__file__).with_name("iceberg-pom.xml")
PROGRAM = Path(__file__).with_name("iceberg_program.py")
PYSPARK = "pyspark==4.1.4"
MORE = {"day": pa.date32(), "is_paid": pa.bool_(), "count": pa.int64()}
DAY_MS = 86_400_000


def run(_targets: Sequence[Target]) -> Iterator[Result]:
    """Compare each table; no broker takes part."""
    with tempfile.TemporaryDirectory(prefix="korvet-iceberg-") as name:
        folder = Path(name)
        archive(folder / "archive")
        partitions = [*((column,) for column in VALUES), ("day", "item")]
        for columns in partitions:
            partitioned(folder / "-".join(columns), columns)
        names = ["archive", *map("-".join, partitions)]
        tables = {each: lake(folder / each).child(TOPIC).path for each in names}
        tables["customer"] = bucketed(folder / "bucketed")
        conditions = {
            "count": "count = 7",
            "item": "item = 'nut'",
            "day": "day is null",
            "customer": "customer = 'customer 7'",
        }
        found = rows_in_spark(tables, conditions)
        for each, path in tables.items():
            expected = rows_of_delta(path)
            yield Result(f"rows of {each}", "Spark 4.1", differing(expected, found[each]))
        for each, condition in conditions.items():
            expected = [row for row in rows_of_delta(tables[each]) if MATCHES[each](row[each])]
            yield Result(f"{condition} in {each}", "Spark 4.1", differing(expected, found[f"{each}?"]))


MATCHES: dict[str, Callable[[Any], bool]] = {
    "count": lambda value: value == 7,
    "item": lambda value: value == "nut",
    "day": lambda value: value is None,
    "customer": lambda value: value == "customer 7",
}


def archive(folder: Path) -> None:
    """Make an archive of three ranges, with records of earlier days and without a date, and mirror it."""
    table = LakeTable.open_or_create(lake(folder), TOPIC, TOPIC_ID)
    for first in range(0, 30, 10):
        timestamps = [1_769_860_800_000 - number % 3 * DAY_MS for number in range(first, first + 9)]
        table = table.commit([written(table, first, first + 10, timestamps=[*timestamps, 2**62])])
    mirror(folder).update(Original.open(lake(folder), TOPIC))


def partitioned(folder: Path, columns: tuple[str, ...]) -> None:
    """Make a typed table with a file for each value of the columns, of which one is null, and mirror it."""
    schema = pa.schema([*COLUMNS, *(pa.field(name, kind) for name, kind in MORE.items())])
    table = typed(folder, schema, columns)
    for number in range(3):
        table = grown(
            table, **{name: values[number] for name, values in VALUES.items()}, parts=[{"n": number}]
        )
    mirror(folder).update(Original.open(lake(folder), TOPIC))


def bucketed(folder: Path) -> str:
    """Make a typed table with four buckets, mirror it, and return its path."""
    made = Lake(folder)
    made.archive([{"customer": f"customer {number}", "n": number} for number in range(40)])
    made.decode(bucket_by="customer", buckets=4)
    typed_tables = made.location("typed")
    Mirror(PathCatalog(typed_tables, FOLDER), "typed").update(Original.open(typed_tables, made.topic))
    return typed_tables.child(made.topic).path


def rows_in_spark(tables: dict[str, str], conditions: dict[str, str]) -> dict[str, list[Any]]:
    """Return the rows of each table as Spark reads them, and those that fulfil its condition, if it has one."""
    words = [f"{name}={path}/{FOLDER}" for name, path in tables.items()]
    words += [f"{name}?={tables[name]}/{FOLDER}?{text}" for name, text in conditions.items()]
    python = environment(PYSPARK)
    libraries = ",".join(str(jar) for jar in sorted(jars(POM).glob("*.jar")))
    done = subprocess.run(
        [python, PROGRAM, libraries, *words],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
        env={**os.environ, "TZ": "UTC", "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
    )
    if done.returncode:
        raise Unavailable(f"Spark ended with {done.returncode}:\n{done.stderr[:4000]}")
    found: dict[str, list[Any]] = {word.partition("=")[0]: [] for word in words}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        found[row["table"]].append(row["row"])
    return found


def rows_of_delta(path: str) -> list[Any]:
    """Return the rows of a Delta table as deltalake reads them."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return [{iceberg_name(name): value for name, value in plain(row).items()} for row in rows]


def differing(expected: list[Any], found: list[Any]) -> str:
    """Return what differs, or nothing."""
    # An archive's `date` is no column of the Iceberg table.
    names = found[0].keys() if found else ()
    lists = [
        [{name: row[name] for name in names if name in row} for row in rows] for rows in (expected, found)
    ]
    left, right = (sorted(json.dumps(row, sort_keys=True) for row in rows) for rows in lists)
    if left == right:
        return ""
    different = next(
        ((one, other) for one, other in zip(left, right, strict=False) if one != other), ("", "")
    )
    return f"{len(left)} rows in Delta, {len(right)} in Iceberg: {different[0]} is {different[1]}"
