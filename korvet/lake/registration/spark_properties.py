"""The properties by which Spark finds a Delta table in a Hive metastore or in Glue.

Spark reads the columns of the log. Those of the properties are for other programs, and split as Spark does: a
metastore's database may limit the length of a value.
"""

from __future__ import annotations

from collections.abc import Mapping

from korvet.lake.registration.described import Described

PROVIDER = "spark.sql.sources.provider"
SCHEMA = "spark.sql.sources.schema"
LONGEST = 4000


def spark_properties(table: Described) -> dict[str, str]:
    """Return the properties of a table's entry."""
    properties = {"EXTERNAL": "TRUE", PROVIDER: "delta"}
    if table.comment:
        properties["comment"] = table.comment
    if len(table.schema) <= LONGEST:
        return properties | {SCHEMA: table.schema}
    parts = [table.schema[start : start + LONGEST] for start in range(0, len(table.schema), LONGEST)]
    numbered = {f"{SCHEMA}.part.{number}": part for number, part in enumerate(parts)}
    return properties | {f"{SCHEMA}.numParts": str(len(parts))} | numbered


def other_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of an entry that do not describe its columns."""
    return {
        name: text
        for name, text in properties.items()
        if name != SCHEMA and not name.startswith(f"{SCHEMA}.")
    }


def is_delta(properties: Mapping[str, str]) -> bool:
    """Return True if the properties are those of a Delta table."""
    return properties.get(PROVIDER, "").lower() == "delta"


def has_columns(properties: Mapping[str, str], table: Described) -> bool:
    """Return True if the properties have the columns of the table."""
    wanted = {name: text for name, text in spark_properties(table).items() if name.startswith(SCHEMA)}
    return wanted == {name: text for name, text in properties.items() if name.startswith(SCHEMA)}
