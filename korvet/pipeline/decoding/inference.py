"""Infer columns: fields without a column are counted by type, and the counts become new columns.

Counts can be added, so workers may process parts of a range, and the result does not depend on how it was split.
A field with several types gets the type of most rows; the other rows are bad rows. A field with integers and
fractions becomes a double.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
from attrs import define, field

from korvet.pipeline.decoding.leaves import Number
from korvet.pipeline.decoding.names import column_name, field_name

Numbers = Literal["long", "double", "string"]
# Field names from the top to a value. None stands for the elements of an array.
Path = tuple[str | None, ...]
Wanted = Counter[tuple[Path, str]]

DEEPEST = 50  # levels; deeper nesting is an attack or an accident
KINDS: dict[type, str] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    Number: "number",
    dict: "struct",
    list: "array",
}
TYPES = {"boolean": pa.bool_(), "long": pa.int64(), "double": pa.float64(), "string": pa.string()}


def wanted(rows: Iterable[Mapping[str, Any] | None], fields: Sequence[pa.Field]) -> Wanted:
    """Count the fields that have no column, as (path, kind)."""
    found: Wanted = Counter()
    types = _types(fields)
    nested = [one for one in fields if pa.types.is_struct(element(one.type))]
    for row in rows:
        if row is not None and (nested or not row.keys() <= types.keys()):
            _compare(row, types, (), found)
    return found


def _types(fields: Iterable[pa.Field]) -> dict[str, pa.DataType]:
    """Return the types of columns by the names of their JSON fields."""
    return {field_name(one.name): one.type for one in fields}


def element(kind: pa.DataType) -> pa.DataType:
    """Return the type of an array's elements, at any depth; any other type unchanged."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _compare(row: Mapping[str, Any], columns: Mapping[str, pa.DataType], path: Path, found: Wanted) -> None:
    for name, value in row.items():
        kind = columns.get(name)
        if kind is None:
            _count(value, (*path, name), found)
        else:
            _inside(value, kind, (*path, name), found)


def _inside(value: Any, kind: pa.DataType, path: Path, found: Wanted) -> None:
    """Count the new fields inside of a value that has a column."""
    if pa.types.is_struct(kind) and type(value) is dict:
        _compare(value, _types(kind), path, found)
    elif pa.types.is_list(kind) and type(value) is list:
        for each in value:
            _inside(each, kind.value_type, (*path, None), found)


def _count(value: Any, path: Path, found: Wanted) -> None:
    if value is None or len(path) > DEEPEST:
        return
    kind = KINDS[type(value)]
    found[path, kind] += 1
    if kind == "struct":
        for name, inner in value.items():
            _count(inner, (*path, name), found)
    elif kind == "array":
        for inner in value:
            _count(inner, (*path, None), found)


def grown(
    fields: Sequence[pa.Field],
    found: Mapping[tuple[Path, str], int],
    *,
    numbers: Numbers = "long",
    max_columns: int = 1000,
    reserved: Collection[str] = (),
) -> list[pa.Field]:
    """Return the columns, followed by new ones for the fields found, in the order of the first rows.

    No column is added for an empty name, for a name that differs from another only in case, or for a `reserved` name;
    nor once there are `max_columns`, nested ones included.
    """
    growth = Growth(numbers, max_columns - sum(map(leaves, fields)))
    for (path, kind), count in found.items():
        growth.kinds[path][kind] += count
    for path in growth.kinds:
        growth.children[path[:-1]].append(path)
    return growth.extend(fields, (), reserved)


def leaves(one: pa.Field) -> int:
    """Return the number of columns that a field has in a file."""
    kind = element(one.type)
    return sum(map(leaves, kind)) if pa.types.is_struct(kind) else 1


@define
class Growth:
    """The counts by path, and the number of columns that may still be added."""

    numbers: Numbers
    room: int
    kinds: dict[Path, Counter[str]] = field(factory=lambda: defaultdict(Counter))
    children: dict[Path, list[Path]] = field(factory=lambda: defaultdict(list))

    def extend(
        self, fields: Iterable[pa.Field], path: Path, reserved: Collection[str] = ()
    ) -> list[pa.Field]:
        """Return the fields at a path, extended, followed by the new ones."""
        whole = [one.with_type(self.deepened(one.type, (*path, field_name(one.name)))) for one in fields]
        taken = {one.name.lower() for one in whole} | {name.lower() for name in reserved}
        for child in self.children.get(path, ()):
            name = column_name(child[-1] or "")  # None is no field but an array's elements
            if not name or name.lower() in taken:
                continue
            kind = self.type_of(child)
            if kind is not None:
                whole.append(pa.field(name, kind))
                taken.add(name.lower())
        return whole

    def deepened(self, kind: pa.DataType, path: Path) -> pa.DataType:
        """Return the type of an existing column, with the new fields inside of it."""
        if pa.types.is_struct(kind):
            return pa.struct(self.extend(kind, path))
        if pa.types.is_list(kind) and pa.types.is_struct(element(kind)):
            return pa.list_(self.deepened(kind.value_type, (*path, None)))
        return kind

    def type_of(self, path: Path) -> pa.DataType | None:
        """Return the type for the counts at a path; None if no value had a type, or if there is no room."""
        counts = self.kinds.get(path)
        if not counts:
            return None
        kind = self.most_frequent(counts)
        if kind == "struct":
            inner = self.extend([], path)
            return pa.struct(inner) if inner else None
        if kind == "array":
            items = self.type_of((*path, None))
            return None if items is None else pa.list_(items)
        if self.room <= 0:
            return None
        self.room -= 1
        return TYPES[kind]

    def most_frequent(self, counts: Counter[str]) -> str:
        """Return the kind of most rows. Kinds of numbers count together; `numbers` decides what they become."""
        counted: Counter[str] = Counter()
        as_number = "string" if self.numbers == "string" else "number"
        for kind, count in counts.items():
            counted[as_number if kind in ("long", "double", "number") else kind] += count
        best = max(counted, key=lambda kind: (counted[kind], kind))
        if best != "number":
            return best
        return "double" if self.numbers == "double" or counts["double"] else "long"
