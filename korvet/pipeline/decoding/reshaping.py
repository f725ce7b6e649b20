"""Reshape rows before they become columns: unwrap Debezium's envelopes, rename fields, flatten nested fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from attrs import frozen

from korvet.pipeline.decoding.inference import DEEPEST
from korvet.pipeline.decoding.leaves import Row, Unfit, shown

OPERATIONS = {"c": "after", "r": "after", "u": "after", "d": "before"}
SEPARATOR = "."


@frozen
class Change:
    """The row in an envelope, and its operation (c create, r read, u update, d delete)."""

    row: Row | None
    operation: str


def unwrap(envelope: Mapping[str, Any]) -> Change:
    """Return the row in Debezium's envelope: its state after the change, or before its deletion.

    If Debezium's JSON converter includes schemas, the envelope is in `payload`. Raises Unfit.
    """
    if "payload" in envelope and "op" not in envelope:
        payload = envelope["payload"]
        if type(payload) is not dict:
            raise Unfit(f"payload {shown(payload)} is not an object")
        envelope = payload
    if "op" not in envelope:
        raise Unfit("is not a Debezium envelope: it has no op")
    operation = envelope["op"]
    if operation not in OPERATIONS:
        raise Unfit(f"op {shown(operation)} is none of {', '.join(OPERATIONS)}")
    row = envelope.get(OPERATIONS[operation])
    if type(row) is not dict and operation != "d":
        raise Unfit(f"op {operation} without an object in {OPERATIONS[operation]}: {shown(row)}")
    return Change(row if type(row) is dict else None, operation)


def rename(row: Row, names: Mapping[str, str]) -> None:
    """Move fields to other names, in place: a path like `customer.name` to a name at the top. Raises Unfit.

    Missing fields are skipped: producers may have written the row before or after they renamed the field.
    """
    for path, name in names.items():
        *outer, last = path.split(SEPARATOR)
        holder: Any = row
        for step in outer:
            holder = holder.get(step) if type(holder) is dict else None
        if type(holder) is not dict or last not in holder or path == name:
            continue
        value = holder.pop(last)
        if row.get(name) is not None and value is not None:
            raise Unfit(f"holds both {path!r} and {name!r}, which is what the first is renamed to")
        if value is not None or name not in row:
            row[name] = value


def flatten(row: Mapping[str, Any], separator: str, kept: Collection[str] = ()) -> Row:
    """Move fields of nested objects to the top, with joined names. Arrays stay, and so do the maps in `kept`.

    Raises Unfit.
    """
    flat: Row = {}

    def bring_up(prefix: str, holder: Mapping[str, Any], depth: int) -> None:
        if depth > DEEPEST:
            raise Unfit(f"is nested deeper than {DEEPEST} objects")
        for name, value in holder.items():
            whole = f"{prefix}{name}"
            if type(value) is dict and whole not in kept:
                bring_up(f"{whole}{separator}", value, depth + 1)
            elif flat.get(whole) is not None and value is not None:
                raise Unfit(f"has two fields that flatten to {whole!r}")
            elif value is not None or whole not in flat:
                flat[whole] = value

    bring_up("", row, 1)
    return flat


def flattened_fields(fields: Iterable[pa.Field], separator: str, prefix: str = "") -> Iterator[pa.Field]:
    """Yield the columns of rows that `flatten` returns."""
    for one in fields:
        if pa.types.is_struct(one.type):
            yield from flattened_fields(one.type, separator, f"{prefix}{one.name}{separator}")
        else:
            yield one.with_name(f"{prefix}{one.name}")


def renamed_fields(fields: Iterable[pa.Field], names: Mapping[str, str]) -> list[pa.Field]:
    """Return the columns of rows whose fields were renamed, from the columns of the original schema."""
    found = list(fields)
    for path, name in names.items():
        moved, found = taken_out(found, path.split(SEPARATOR))
        if moved is not None:
            found.append(moved.with_name(name))
    return found


def taken_out(fields: Sequence[pa.Field], path: Sequence[str]) -> tuple[pa.Field | None, list[pa.Field]]:
    """Return the field at a path, and the remaining fields; a struct without remaining fields is removed."""
    moved, rest = None, []
    for one in fields:
        if one.name != path[0]:
            rest.append(one)
        elif len(path) == 1:
            moved = one
        elif pa.types.is_struct(one.type):
            moved, inner = taken_out(list(one.type), path[1:])
            rest += [one.with_type(pa.struct(inner))] if inner else []
        else:
            rest.append(one)
    return moved, rest
