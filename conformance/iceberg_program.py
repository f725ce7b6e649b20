"""Print the rows of Iceberg tables, one as JSON in each line, as Spark reads them. It needs only pyspark.

Arguments: the jars, separated by commas, and for each table NAME=FOLDER, with an optional condition: NAME=FOLDER?SQL.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it. Timestamps are naive in UTC, which is this process's time zone."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def main() -> None:
    """Print the rows of all tables."""
    jars, *tables = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    for table in tables:
        name, _, rest = table.partition("=")
        folder, _, condition = rest.partition("?")
        rows = spark.read.format("iceberg").load(folder)
        for row in (rows.where(condition) if condition else rows).collect():
            print(json.dumps({"table": name, "row": plain(row.asDict(recursive=True))}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
