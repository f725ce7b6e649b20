"""Convert JSON texts to Python objects; a value that is not a JSON object is a fault of its row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import orjson
import pyarrow as pa

from korvet.pipeline.decoding.confluent import looks_framed
from korvet.pipeline.decoding.leaves import Faults, Number, Row, Unfit, shown

FRAMED_HINT = "; it begins with 0 and an id, as values with a registry's schema do: give registry, or framing"


Load = Callable[[bytes], Any]


def objects(
    values: Sequence[bytes | None],
    faults: Faults,
    *,
    as_written: bool = False,
    unframed: Load | None = None,
) -> list[Row | None]:
    """Return the object in each value; None for a null value and for a bad one, which is added to `faults`.

    With `as_written`, numbers keep their text (`Number`), so that decimals and strings lose no digit. `unframed`
    returns the JSON in a framed value, or raises Unfit.
    """
    load: Load = numbers_as_written if as_written else orjson.loads
    rows: list[Row | None] = []
    for number, value in enumerate(values):
        row = None
        if value is not None:
            try:
                row = load(value if unframed is None else unframed(value))
            except Unfit as fault:
                faults.add(number, "$", str(fault))
            except (ValueError, RecursionError) as error:
                hint = FRAMED_HINT if unframed is None and looks_framed(value) else ""
                faults.add(number, "$", f"is not JSON: {describe(error)}{hint}")
            else:
                if type(row) is not dict:
                    faults.add(number, "$", f"{shown(row)} is not an object")
                    row = None
        rows.append(row)
    return rows


def describe(error: ValueError | RecursionError) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def numbers_as_written(value: bytes) -> Any:
    """Parse with the standard library: about four times slower, but it can keep the text of numbers."""
    return json.loads(value.decode(), parse_int=Number, parse_float=Number, parse_constant=refuse)


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def needs_numbers_as_written(fields: Sequence[pa.Field]) -> bool:
    """Return True if a column is a decimal, which parsing as a float would round."""
    return any(_has_decimal(one.type) for one in fields)


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimal(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))
