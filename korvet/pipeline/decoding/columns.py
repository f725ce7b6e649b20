"""Convert Python values to Arrow arrays without casting: a value that does not fit its column is a fault.

Arrow alone is too lenient: `pyarrow.array([1.5], int64())` is 1 without an error. So the Python types of a column's
values are checked first, which is cheap. Only if one of them is not the column's own type is each value checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import pyarrow as pa

from korvet.lake.schema import BUCKET, HOUR, MONTH
from korvet.pipeline.decoding.leaves import Faults, Reading, leaf_column, shown
from korvet.pipeline.decoding.names import field_name

# The typed table's columns about the record.
PARTITION, OFFSET, TIMESTAMP = "_partition", "_offset", "_timestamp"
KEY, RAW, OPERATION, DATE = "_key", "_raw", "_op", "_date"
DELETED, DELETED_AT = "_deleted", "_deleted_at"
RESERVED = (PARTITION, OFFSET, TIMESTAMP, KEY, RAW, OPERATION, DATE, HOUR, MONTH, BUCKET, DELETED, DELETED_AT)


def struct_columns(
    rows: Sequence[Mapping[str, Any] | None],
    fields: Sequence[pa.Field],
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str = "$",
) -> list[pa.Array]:
    """Return an array for each field, as long as `rows`. `numbers` identify the rows in `faults`.

    The arrays have null, or any value, for a row with a fault; the caller leaves such rows out.
    """
    names = [field_name(one.name) if reading.escaped_names else one.name for one in fields]
    if reading.unknown != "drop":
        find_unknown(rows, names, numbers, faults, reading, path)
    arrays = []
    for one, name in zip(fields, names, strict=True):
        values = field_values(rows, name)
        where = f"{path}.{name}"
        if not one.nullable:
            for row, value, number in zip(rows, values, numbers, strict=True):
                if value is None and row is not None and number not in faults.may_lack:
                    faults.add(number, where, "is missing, and must be there")
        arrays.append(column(values, one.type, numbers, faults, reading, where))
    return arrays


def field_values(rows: Sequence[Mapping[str, Any] | None], name: str) -> list[Any]:
    """Return each row's value of a field, None if it has none. Fast if all rows have the field."""
    try:
        return list(map(itemgetter(name), rows))  # type: ignore[arg-type] # None raises TypeError
    except (KeyError, TypeError):
        return [None if row is None else row.get(name) for row in rows]


def find_unknown(
    rows: Sequence[Mapping[str, Any] | None],
    names: Collection[str],
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str,
) -> None:
    """Add a fault for each field without a column; with unknown="add", only for fields whose value has a type."""
    known = frozenset(names)
    for row, number in zip(rows, numbers, strict=True):
        if row is None or row.keys() <= known:
            continue
        for name in row.keys() - known:
            if reading.unknown == "dlq":
                faults.add(number, f"{path}.{name}", "there is no column for it")
            elif has_type(row[name]):
                faults.add(number, f"{path}.{name}", why_no_column(name, known))


def why_no_column(name: str, siblings: Collection[str]) -> str:
    """Return the reason why inference added no column for a field."""
    if not name:
        return "no column can have this name; give it another with rename"
    if name.lower() in RESERVED:
        return "is the name of a column of the table's own; give it another with rename"
    for sibling in siblings:
        if sibling.lower() == name.lower():
            return f"differs from column {sibling!r} only in case; give it another name with rename"
    return "no column could be added for it (max_columns, or its type differs between rows)"


def has_type(value: object) -> bool:
    """Return True if a column type can be inferred from the value; not so for null, [], {} and lists of these."""
    if isinstance(value, dict):
        return any(map(has_type, value.values()))
    if isinstance(value, list):
        return any(map(has_type, value))
    return value is not None


def column(
    values: Sequence[Any],
    kind: pa.DataType,
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str,
) -> pa.Array:
    """Return the values as one array of this type. A value that does not fit is null in it, and a fault of its row."""
    if pa.types.is_struct(kind):
        rows = only(values, dict, "an object", numbers, faults, path)
        arrays = struct_columns(rows, list(kind), numbers, faults, reading, path)
        mask = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        return map_column(values, kind, numbers, faults, reading, path)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = only(values, list, "an array", numbers, faults, path)
        flat, owners = flattened(lists, numbers)
        items = column(flat, kind.value_type, owners, faults, reading, f"{path}[]")
        return pa.ListArray.from_arrays(offsets(lists), items, type=kind)
    return leaf_column(values, kind, numbers, faults, reading, path)


def only(
    values: Sequence[Any], wanted: type, name: str, numbers: Sequence[int], faults: Faults, path: str
) -> Sequence[Any]:
    """Return the values of one Python type; others become None, and faults."""
    if set(map(type, values)) <= {wanted, type(None)}:
        return values
    kept = []
    for value, number in zip(values, numbers, strict=True):
        fits = value is None or type(value) is wanted
        kept.append(value if fits else None)
        if not fits:
            faults.add(number, path, f"{shown(value)} is not {name}")
    return kept


def flattened(lists: Sequence[Any], numbers: Sequence[int]) -> tuple[list[Any], list[int]]:
    """Return the items of all lists, and the row number of each item."""
    flat = list(chain.from_iterable(each for each in lists if each is not None))
    owners = [
        number
        for each, number in zip(lists, numbers, strict=True)
        if each is not None
        for _ in range(len(each))
    ]
    return flat, owners


def offsets(sized: Sequence[Any]) -> pa.Array:
    """Return the offsets of an Arrow list array: one per list, null for a missing list, and the end."""
    begins: list[int | None] = []
    position = 0
    for each in sized:
        begins.append(None if each is None else position)
        position += 0 if each is None else len(each)
    return pa.array([*begins, position], pa.int32())


def map_column(
    values: Sequence[Any],
    kind: pa.DataType,
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str,
) -> pa.Array:
    maps = only(values, dict, "an object", numbers, faults, path)
    pairs = [None if each is None else list(each.items()) for each in maps]
    flat, owners = flattened(pairs, numbers)
    keys = column([key for key, _ in flat], kind.key_type, owners, faults, reading, f"{path}.<key>")
    if keys.null_count:  # the caller leaves such a row out, but Arrow accepts no null key even there
        keys = keys.fill_null(pa.scalar("" if pa.types.is_string(keys.type) else 0, keys.type))
    items = column([item for _, item in flat], kind.item_type, owners, faults, reading, f"{path}.*")
    return pa.MapArray.from_arrays(offsets(pairs), keys, items, type=kind)
