"""Features of Delta tables that korvet does not use, but other writers enable.

A deletion vector marks rows of a file as deleted. With column mapping, a column has another name in files than in the
table: files that korvet writes would lack it.
"""

from __future__ import annotations

import json
from typing import Any

from deltalake import DeltaTable

from korvet.lake.errors import NewerFormat
from korvet.lake.location import Location

MAPPING_MODE = "delta.columnMapping.mode"
PHYSICAL_NAME = "delta.columnMapping.physicalName"


def has_deletion_vectors(delta: DeltaTable) -> bool:
    """Return True if files may hold rows that deletion vectors mark as deleted."""
    return "deletionVectors" in (delta.protocol().reader_features or ())


def has_column_mapping(delta: DeltaTable) -> bool:
    """Return True if columns may have other names in files than in the table."""
    mode = (delta.metadata().configuration.get(MAPPING_MODE) or "none").lower()
    # A mapping by name that was enabled later leaves the columns that were there their names.
    return mode != "none" and (mode == "id" or _is_renamed(json.loads(delta.schema().to_json())))


def refuse_other_features(location: Location, delta: DeltaTable) -> None:
    """Raise NewerFormat if rewriting the files would restore deleted rows, or lose columns."""
    if has_deletion_vectors(delta):
        raise NewerFormat(
            f"{location} has deletion vectors, which another writer made, so its files cannot be rewritten."
        )
    refuse_column_mapping(location, delta)


def refuse_column_mapping(location: Location, delta: DeltaTable) -> None:
    """Raise NewerFormat if columns have other names in files than in the table."""
    if has_column_mapping(delta):
        raise NewerFormat(
            f"{location} has column mapping, which another writer enabled, and renamed columns; "
            "korvet cannot write its files."
        )


def _is_renamed(kind: Any) -> bool:
    """Return True if a type in Spark's JSON has a field with another name in files."""
    if not isinstance(kind, dict):
        return False
    fields = kind.get("fields", ())
    return any(
        each["metadata"].get(PHYSICAL_NAME, each["name"]) != each["name"] or _is_renamed(each["type"])
        for each in fields
    ) or any(_is_renamed(kind.get(part)) for part in ("elementType", "keyType", "valueType"))
