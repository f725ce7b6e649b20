"""Check single values against the type of their column."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

Unknown = Literal["drop", "add", "dlq"]
Timestamps = Literal["iso", "epoch_s", "epoch_ms", "epoch_us"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_CHARACTERS = 60
DIGITS = Context(prec=76)
DECIMAL_DIGITS = 38
INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
Row = dict[str, Any]
INTEGER = re.compile(r"-?\d+", re.ASCII)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
#: Conversions of values that do not fit their columns, each permitted by its name.
NUMBER_FROM_STRING = "number-from-string"
DECIMAL_FROM_STRING = "decimal-from-string"
STRING_FROM_NUMBER = "string-from-number"
UTC_IF_NO_ZONE = "utc-if-no-zone"
ROUND = "round"
LENIENT = (NUMBER_FROM_STRING, DECIMAL_FROM_STRING, STRING_FROM_NUMBER, UTC_IF_NO_ZONE, ROUND)


class Unfit(ValueError):  # noqa: N818  a finding about a row, which is caught and reported
    """The value does not fit its column; the message gives the reason."""


class SchemaFault(ValueError):  # noqa: N818  as above, about a schema
    """The schema does not parse, or no table can have it; the message names the place."""


class Number(str):
    """The text of a number, for columns that must not lose a digit of it."""

    __slots__ = ()


@define
class Faults:
    """The first fault of each bad row, by row number."""

    by_row: dict[int, str] = field(factory=dict)
    #: Rows that may lack required fields: deletions, which often have only the key.
    may_lack: set[int] = field(factory=set)

    def add(self, row: int, path: str, reason: str) -> None:
        """Record a fault, unless the row has one already."""
        self.by_row.setdefault(row, f"{path}: {reason}")


def rows_of(values: Sequence[bytes | None], read: Callable[[bytes], Row], faults: Faults) -> list[Row | None]:
    """Return the row in each value; None for a null value and for one that `read` finds Unfit, which is a fault."""
    rows: list[Row | None] = []
    for number, value in enumerate(values):
        row = None
        if value is not None:
            try:
                row = read(value)
            except Unfit as fault:
                faults.add(number, "$", str(fault))
        rows.append(row)
    return rows


@frozen
class Reading:
    """Options for values that JSON has no type for, and for fields without a column."""

    unknown: Unknown = "drop"
    timestamps: Timestamps = "iso"
    truncate_nanoseconds: bool = False
    exact_floats: bool = False  # a float column takes only values that it can hold without rounding
    escaped_names: bool = False  # names of columns are those of fields, escaped by `column_name`
    lenient: frozenset[str] = frozenset()  # of LENIENT
    whole_floats: bool = False  # an integer column takes 1.0, as JSON Schema's type `integer` does


Exact = Callable[[Any, pa.DataType, Reading], Any]


def leaf_column(
    values: Sequence[Any],
    kind: pa.DataType,
    numbers: Sequence[int],
    faults: Faults,
    reading: Reading,
    path: str,
) -> pa.Array:
    """Return an array without nesting."""
    # Convert all values together if they have the column's own type, otherwise one by one.
    own_types, exact = LEAVES[kind.id]
    if set(map(type, values)) <= own_types:
        try:
            array = pa.array(values, kind)
            if not (reading.exact_floats and pa.types.is_float32(kind) and is_rounded(array, values)):
                return array
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            pass  # a value is out of range; the loop below finds it
    fitting = []
    for given, number in zip(values, numbers, strict=True):
        value = converted(given, kind, reading.lenient) if reading.lenient else given
        try:
            fitting.append(None if value is None else exact(value, kind, reading))
        except Unfit as fault:
            wider = wider_type(value, kind, reading)
            hint = f"; korvet lake widen makes the column {named(wider)}" if wider is not None else ""
            faults.add(number, path, f"{fault}{hint}")
            fitting.append(None)
    return pa.array(fitting, kind)


def wider_type(value: Any, kind: pa.DataType, reading: Reading) -> pa.DataType | None:
    """Return the type, of those that a column can be widened to, that the value fits; None if there is none."""
    for wider in wider_types(value, kind):
        try:
            LEAVES[wider.id][1](value, wider, reading)
        except Unfit:
            continue
        return wider
    return None


def wider_types(value: Any, kind: pa.DataType) -> Sequence[pa.DataType]:
    if pa.types.is_signed_integer(kind):
        return [each for each in (pa.int16(), pa.int32(), pa.int64()) if each.bit_width > kind.bit_width]
    if pa.types.is_float32(kind):
        return [pa.float64()]
    if pa.types.is_decimal(kind) and type(value) in (Number, int, Decimal):
        number = Decimal(value)
        scale = max(kind.scale, -int(number.normalize().as_tuple().exponent)) if number.is_finite() else 0
        precision = max(kind.precision - kind.scale, number.adjusted() + 1) + scale
        return [pa.decimal128(precision, scale)] if number.is_finite() and precision <= DECIMAL_DIGITS else []
    return []


def converted(value: Any, kind: pa.DataType, rules: frozenset[str]) -> Any:
    """Return a value as the rules permit to convert it for a column, or unchanged. It may still not fit."""
    if type(value) is str:
        rule = DECIMAL_FROM_STRING if pa.types.is_decimal(kind) else NUMBER_FROM_STRING
        is_number = pa.types.is_decimal(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
        fits = is_number and rule in rules and NUMBER.fullmatch(value) and math.isfinite(float(value))
        return Number(value) if fits else value
    if ROUND not in rules or type(value) not in (Number, int):
        return value
    if pa.types.is_decimal(kind):
        try:
            return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_EVEN, DIGITS)
        except InvalidOperation:
            return value  # too large
    if pa.types.is_float64(kind) and INTEGER.fullmatch(str(value)) and math.isfinite(float(str(value))):
        return float(str(value))
    return value


def is_rounded(array: pa.Array, values: Sequence[Any]) -> bool:
    """Return True if a float array differs from the doubles that it was made of."""
    doubles = np.array([np.nan if value is None else value for value in values], np.float64)
    return not np.array_equal(array.to_numpy(zero_copy_only=False), doubles, equal_nan=True)


def exact_integer(value: Any, kind: pa.DataType, reading: Reading) -> int:
    if reading.whole_floats and type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is Number and INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise misfit(value, kind)
    limit = 1 << (kind.bit_width - 1)
    if not -limit <= value < limit:
        raise Unfit(f"{shown(value)} is out of range of {named(kind)}")
    return value


def exact_double(value: Any, kind: pa.DataType, reading: Reading) -> float:
    """Return a double. Text with a point is rounded as JSON readers do; an integer must be exactly representable."""
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
        if reading.exact_floats and value == value and float(np.float32(value)) != value:  # noqa: PLR0124  not a NaN
            raise Unfit(f"{shown(value)} has more digits than {named(kind)} can hold")
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
        raise Unfit(f"{shown(value)} is not base64, the encoding of bytes in JSON") from None


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
        raise Unfit(f"{shown(value)} is not a date; accepted: 2026-01-31") from None


def exact_timestamp(value: Any, kind: pa.DataType, reading: Reading) -> datetime:
    """Parse ISO 8601, with a UTC offset for `timestamp`, without for `timestamp_ntz`; or a number since 1970."""
    moment = value if type(value) is datetime else parsed_timestamp(value, kind, reading)
    if moment.tzinfo is None and kind.tz is not None and UTC_IF_NO_ZONE in reading.lenient:
        return moment.replace(tzinfo=UTC)
    if (moment.tzinfo is None) != (kind.tz is None):
        offset_text = "a UTC offset" if kind.tz is None else "no UTC offset"
        other = "timestamp" if kind.tz is None else "timestamp_ntz"
        raise Unfit(f"{shown(value)} has {offset_text}: that is {other}, not {named(kind)}")
    return moment


def parsed_timestamp(value: Any, kind: pa.DataType, reading: Reading) -> datetime:
    if reading.timestamps != "iso":
        return since_epoch(value, kind, reading.timestamps)
    if type(value) is not str:
        raise misfit(value, kind)
    match = INSTANT.fullmatch(value)
    if match is None:
        raise Unfit(f"{shown(value)} is not a timestamp; accepted: 2026-01-31T12:00:00.123456Z")
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
        raise Unfit(f"{shown(value)} is not a timestamp: {error}") from None


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
    return Unfit(f"{shown(value)} is not of type {named(kind)}")


def shown(value: object) -> str:
    """Return a value as JSON, shortened to SHOWN_CHARACTERS."""
    text = str(value) if isinstance(value, Number) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def named(kind: pa.DataType) -> str:
    """Return a type's name in Spark SQL."""
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
