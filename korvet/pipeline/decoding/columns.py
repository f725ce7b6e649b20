"""Python values become Arrow arrays, and nothing is cast on the way: a value fits its column or is a fault.

Arrow alone is no judge: `pyarrow.array([1.5], int64())` is 1 without a complaint. So the types of a column's values
are looked at first, which costs little. Only where one of them is not the column's own is each value looked at.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import chain
from operator import itemgetter
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
from attrs import define, field, frozen

Unknown = Literal["drop", "add", "dlq"]
Timestamps = Literal["iso", "epoch_s", "epoch_ms", "epoch_us"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_CHARACTERS = 60
INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
INTEGER = re.compile(r"-?\d+", re.ASCII)
# The typed table's own columns: where a row comes from.
PARTITION, OFFSET, TIMESTAMP = "_partition", "_offset", "_timestamp"
KEY, RAW, OPERATION, DATE, DELETED = "_key", "_raw", "_op", "_date", "_deleted"
RESERVED = (PARTITION, OFFSET, TIMESTAMP, KEY, RAW, OPERATION, DATE, DELETED)
# What names of columns cannot hold in a table that every reader of Delta can read.
UNFIT_NAME = re.compile(r"[ ,;{}()\n\t=]")


class Unfit(ValueError):  # noqa: N818  a finding about a row, which is caught and told
    """A value that cannot be what its column is; says why."""


class SchemaFault(ValueError):  # noqa: N818  as above, about a schema
    """A schema that does not parse, or that no table can follow; says where."""


class Number(str):
    """A number as it was written, for columns that must not lose a digit of it."""

    __slots__ = ()


@define
class Faults:
    """What is wrong with rows: the first complaint about each, by its number."""

    by_row: dict[int, str] = field(factory=dict)
    #: Rows that need not have what others must have: deleted ones, of which often only the key is told.
    may_lack: set[int] = field(factory=set)

    def add(self, row: int, path: str, reason: str) -> None:
        """Remember it, unless the row is bad already."""
        self.by_row.setdefault(row, f"{path}: {reason}")


@frozen
class Reading:
    """How values that JSON has no type for are read, and what becomes of fields that have no column."""

    unknown: Unknown = "drop"
    timestamps: Timestamps = "iso"
    truncate_nanoseconds: bool = False


def struct_columns(
    rows: Sequence[Mapping[str, Any] | None],
    fields: Sequence[pa.Field],
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str = "$",
) -> list[pa.Array]:
    """An array for each field, as long as `rows`; `numbers` are what faults call the rows.

    A row with a fault has null, or anything, in these arrays: its caller leaves it out.
    """
    if reading.unknown != "drop":
        find_unknown(rows, [one.name for one in fields], numbers, faults, reading, path)
    arrays = []
    for one in fields:
        name = one.name
        values = field_values(rows, name)
        where = f"{path}.{name}"
        if not one.nullable:
            for row, value, number in zip(rows, values, numbers, strict=True):
                if value is None and row is not None and number not in faults.may_lack:
                    faults.add(number, where, "is missing, and must be there")
        arrays.append(column(values, one.type, numbers, faults, reading, where))
    return arrays


def field_values(rows: Sequence[Mapping[str, Any] | None], name: str) -> list[Any]:
    """What the rows have under a name, None where they have nothing; quickly where all of them have it."""
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
    """Fields without a column are faults; those that have no type yet are none where columns are added."""
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
    """Why a field was not added to a table to which fields are added."""
    if not name or UNFIT_NAME.search(name):
        return "no column can have this name; give it another with rename"
    if name.lower() in RESERVED:
        return "is the name of a column of the table's own; give it another with rename"
    for sibling in siblings:
        if sibling.lower() == name.lower():
            return f"differs from column {sibling!r} only in case; give it another name with rename"
    return "no column could be added for it (max_columns, or its type differs between rows)"


def has_type(value: object) -> bool:
    """Whether a value says what column it wants: null, [] and {} do not, nor do lists of them."""
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
    """The values as one array of this type; null where one does not fit, which is a fault of its row."""
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
    """The values of one Python type, null for the others, which are faults."""
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
    """What is in the lists, and whose row it is."""
    flat = list(chain.from_iterable(each for each in lists if each is not None))
    owners = [
        number
        for each, number in zip(lists, numbers, strict=True)
        if each is not None
        for _ in range(len(each))
    ]
    return flat, owners


def offsets(sized: Sequence[Any]) -> pa.Array:
    """Where each list begins, as Arrow wants it: null for no list, and one more for the end."""
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
    if keys.null_count:  # such a row is left out, but Arrow takes no null as a key, not even there
        keys = keys.fill_null(pa.scalar("" if pa.types.is_string(keys.type) else 0, keys.type))
    items = column([item for _, item in flat], kind.item_type, owners, faults, reading, f"{path}.*")
    return pa.MapArray.from_arrays(offsets(pairs), keys, items, type=kind)


# --- Leaves --------------------------------------------------------------------------------------------------

Exact = Callable[[Any, pa.DataType, Reading], Any]


def leaf_column(
    values: Sequence[Any],
    kind: pa.DataType,
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str,
) -> pa.Array:
    """An array without nesting: at once if all values are of the column's own type, or one at a time."""
    own_types, exact = LEAVES[kind.id]
    if set(map(type, values)) <= own_types:
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            pass  # one of them is out of range: which one?
    fitting = []
    for value, number in zip(values, numbers, strict=True):
        try:
            fitting.append(None if value is None else exact(value, kind, reading))
        except Unfit as fault:
            faults.add(number, path, str(fault))
            fitting.append(None)
    return pa.array(fitting, kind)


def exact_integer(value: Any, kind: pa.DataType, _reading: Reading) -> int:
    if type(value) is Number and INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise misfit(value, kind)
    limit = 1 << (kind.bit_width - 1)
    if not -limit <= value < limit:
        raise Unfit(f"{shown(value)} is out of range of {named(kind)}")
    return value


def exact_double(value: Any, kind: pa.DataType, _reading: Reading) -> float:
    """Text with a point is rounded as every reader of JSON does; a whole number must be held as it is."""
    if type(value) is Number:
        value = int(value) if INTEGER.fullmatch(value) else float(value)
    if type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if number != value or (pa.types.is_float32(kind) and abs(value) > 1 << 24):
            raise Unfit(f"{shown(value)} has more digits than {named(kind)} can hold")
        return number
    if type(value) is not float:
        raise misfit(value, kind)
    if pa.types.is_float32(kind):
        try:
            struct.pack(">f", value)
        except OverflowError:
            raise Unfit(f"{shown(value)} is out of range of {named(kind)}") from None
    return value


def exact_boolean(value: Any, kind: pa.DataType, _reading: Reading) -> bool:
    if type(value) is not bool:
        raise misfit(value, kind)
    return value


def exact_string(value: Any, kind: pa.DataType, _reading: Reading) -> str:
    if type(value) is UUID:
        return str(value)
    if type(value) not in (str, Number):
        raise misfit(value, kind)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{value!r} holds half a character (a lone surrogate)") from None
    return str(value)


def exact_binary(value: Any, kind: pa.DataType, _reading: Reading) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise misfit(value, kind)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise Unfit(f"{shown(value)} is no base64, which is how JSON holds bytes") from None


def exact_decimal(value: Any, kind: pa.DataType, _reading: Reading) -> Decimal:
    if type(value) not in (Number, int, Decimal):
        raise misfit(value, kind)
    try:
        number = Decimal(value)
        pa.scalar(number, kind)
    except (InvalidOperation, pa.ArrowInvalid):
        raise Unfit(f"{shown(value)} has more digits than {named(kind)} can hold") from None
    return number


def exact_date(value: Any, kind: pa.DataType, _reading: Reading) -> date:
    if type(value) is date:
        return value
    if type(value) is not str:
        raise misfit(value, kind)
    try:
        if len(value) != len("2026-01-31"):
            raise ValueError(value)
        return date.fromisoformat(value)
    except ValueError:
        raise Unfit(f"{shown(value)} is no date; one is written like 2026-01-31") from None


def exact_timestamp(value: Any, kind: pa.DataType, reading: Reading) -> datetime:
    """ISO 8601 with a UTC offset for `timestamp`, without one for `timestamp_ntz`; or a number since 1970."""
    moment = value if type(value) is datetime else parsed_timestamp(value, kind, reading)
    if (moment.tzinfo is None) != (kind.tz is None):
        says = "a UTC offset" if kind.tz is None else "no UTC offset"
        other = "timestamp" if kind.tz is None else "timestamp_ntz"
        raise Unfit(f"{shown(value)} has {says}: that is {other}, not {named(kind)}")
    return moment


def parsed_timestamp(value: Any, kind: pa.DataType, reading: Reading) -> datetime:
    if reading.timestamps != "iso":
        return since_epoch(value, kind, reading.timestamps)
    if type(value) is not str:
        raise misfit(value, kind)
    match = INSTANT.fullmatch(value)
    if match is None:
        raise Unfit(f"{shown(value)} is no timestamp; one is written like 2026-01-31T12:00:00.123456Z")
    day, time, fraction, zone = match.groups()
    if fraction and fraction[6:].strip("0") and not reading.truncate_nanoseconds:
        raise Unfit(f"{shown(value)} has nanoseconds, which truncate_nanoseconds = true would cut off")
    try:
        return datetime.fromisoformat(
            f"{day}T{time}.{(fraction or '0')[:6]:0<6}{zone or ''}"
            if time.count(":") == 2
            else f"{day}T{time}{zone or ''}"
        )
    except ValueError as error:
        raise Unfit(f"{shown(value)} is no timestamp: {error}") from None


def since_epoch(value: Any, kind: pa.DataType, unit: Timestamps) -> datetime:
    if type(value) is Number and INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise Unfit(f"{shown(value)} is not a whole number, as timestamps = {unit!r} has them")
    microseconds = value * {"epoch_s": 1_000_000, "epoch_ms": 1000}.get(unit, 1)
    try:
        moment = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Unfit(f"{value} ({unit}) is out of range of {named(kind)}") from None
    return moment if kind.tz else moment.replace(tzinfo=None)


def misfit(value: object, kind: pa.DataType) -> Unfit:
    return Unfit(f"{shown(value)} is no {named(kind)}")


def shown(value: object) -> str:
    """A value as JSON shows it, cut where it is long."""
    text = str(value) if isinstance(value, Number) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def named(kind: pa.DataType) -> str:
    """A type by the name that Spark's SQL has for it."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return SQL_NAMES.get(kind.id) or str(kind)


NONE = type(None)
LEAVES: dict[int, tuple[frozenset[type], Exact]] = {
    pa.int8().id: (frozenset({int, NONE}), exact_integer),
    pa.int16().id: (frozenset({int, NONE}), exact_integer),
    pa.int32().id: (frozenset({int, NONE}), exact_integer),
    pa.int64().id: (frozenset({int, NONE}), exact_integer),
    pa.float32().id: (frozenset({NONE}), exact_double),
    pa.float64().id: (frozenset({float, NONE}), exact_double),
    pa.bool_().id: (frozenset({bool, NONE}), exact_boolean),
    pa.string().id: (frozenset({str, NONE}), exact_string),
    pa.binary().id: (frozenset({bytes, NONE}), exact_binary),
    pa.decimal128(1).id: (frozenset({Decimal, NONE}), exact_decimal),
    pa.date32().id: (frozenset({date, NONE}), exact_date),
    pa.timestamp("us").id: (frozenset({NONE}), exact_timestamp),
}
SQL_NAMES = {
    pa.int8().id: "tinyint",
    pa.int16().id: "smallint",
    pa.int32().id: "int",
    pa.int64().id: "bigint",
    pa.float32().id: "float",
    pa.float64().id: "double",
    pa.bool_().id: "boolean",
    pa.date32().id: "date",
}
