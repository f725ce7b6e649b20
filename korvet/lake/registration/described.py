"""A Delta table of korvet's as catalogues describe it: name, location, columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import define
from deltalake import DeltaTable

from korvet.lake.errors import WrongTable
from korvet.lake.location import Location
from korvet.lake.store_errors import store_errors
from korvet.lake.table import KIND

#: Delta's names of types that have another name in SQL.
SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@define(slots=False, eq=False)
class Described:
    """One version of an archive, a typed table or a dlq table. `schema` is Spark's JSON."""

    location: Location
    name: str
    comment: str
    schema: str
    partition_columns: Sequence[str]

    @classmethod
    def open(cls, lake: Location, table: str) -> Described:
        """Describe the newest version of a table. Raises NoTable, WrongTable, NewerFormat, Unreachable."""
        location = lake.child(table)
        with store_errors(location):
            delta = DeltaTable(location.url, storage_options=location.storage_options())
            metadata = delta.metadata()
            schema = delta.schema().to_json()
        if KIND not in metadata.configuration:
            raise WrongTable(
                f"{location} is a Delta table, but none of korvet's; name the topics with --topics."
            )
        return cls(
            location,
            catalogue_name(table),
            metadata.description or "",
            json.dumps(json.loads(schema), separators=(",", ":")),
            metadata.partition_columns,
        )

    @cached_property
    def columns(self) -> list[dict[str, Any]]:
        """The columns as Spark's JSON describes them: name, type, nullable, metadata."""
        columns: list[dict[str, Any]] = json.loads(self.schema)["fields"]
        return columns


def catalogue_name(table: str) -> str:
    """Return a table's name in catalogues, which accept lower-case letters, digits and underscores."""
    return re.sub(r"\W", "_", table, flags=re.ASCII).lower()


def sql_type(kind: Any, renamed: Mapping[str, str] = SQL_NAMES) -> str:
    """Return a type of Spark's JSON as SQL writes it. `renamed` are the types with other names there."""
    if isinstance(kind, str):
        return renamed.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{sql_type(kind['elementType'], renamed)}>"
    if kind["type"] == "map":
        return f"map<{sql_type(kind['keyType'], renamed)},{sql_type(kind['valueType'], renamed)}>"
    fields = (f"{each['name']}:{sql_type(each['type'], renamed)}" for each in kind["fields"])
    return f"struct<{','.join(fields)}>"
