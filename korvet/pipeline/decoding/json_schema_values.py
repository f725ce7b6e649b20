"""JSON with a schema: each value is validated with its writer's schema, and becomes a row of the reader's columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema_rs
import orjson
from attrs import frozen

from korvet.pipeline.decoding.confluent import schema_id
from korvet.pipeline.decoding.json_schema_columns import Convert, shape_of, to_columns
from korvet.pipeline.decoding.json_schema_documents import Documents, validator_of, written_with
from korvet.pipeline.decoding.json_values import Load, describe, refuse
from korvet.pipeline.decoding.leaves import Faults, Row, Unfit
from korvet.pipeline.decoding.registry import Registry

SHOWN_CHARACTERS = 200


class Invalid(Exception):  # noqa: N818  a finding about a row
    """The value is not valid by its schema; the arguments are the path and the reason."""


@frozen
class JsonSchemaValues:
    """Reader of values into rows of one schema. `registry` resolves schema ids; None if values have no framing."""

    documents: Documents
    registry: Registry | None = None

    def objects(self, values: Sequence[bytes | None], faults: Faults) -> list[Row | None]:
        """Return the object in each value; None for a null value and for a bad one, which is added to `faults`."""
        load, convert = reader_of(self.documents)
        rows: list[Row | None] = []
        for number, value in enumerate(values):
            row = None
            if value is not None:
                try:
                    row = self.row(value, load)
                    row = row if convert is None else convert(row)
                except Invalid as fault:
                    faults.add(number, *fault.args)
                except Unfit as fault:
                    faults.add(number, "$", str(fault))
                except (ValueError, RecursionError) as error:
                    faults.add(number, "$", f"is not JSON: {describe(error)}")
            rows.append(row)
        return rows

    def row(self, value: bytes, load: Load) -> Row:
        """Return the object in a value. Raises Invalid, Unfit, ValueError, RegistryError."""
        validator, begin = validator_of(self.documents), 0
        if self.registry is not None:
            number, begin = schema_id(value)
            validator = written_with(self.registry, number)
        row = load(value[begin:])
        try:
            validator.validate(row)
        except jsonschema_rs.ValidationError as error:
            raise Invalid(path_of(error.instance_path), shortened(error.message)) from None
        if type(row) is not dict:
            raise Unfit("is not an object")
        return row


@cache
def reader_of(documents: Documents) -> tuple[Load, Convert | None]:
    """Return the function that parses values, and the one that makes rows of them. Raises SchemaFault."""
    convert = to_columns(shape_of(documents))
    # The standard library keeps all digits of whole numbers, which JSON text may have.
    return orjson.loads if convert is None else loaded, convert


def loaded(value: bytes) -> Any:
    return json.loads(value.decode(), parse_constant=refuse)


def path_of(steps: Sequence[str | int]) -> str:
    return "$" + "".join("[]" if isinstance(step, int) else f".{step}" for step in steps)


def shortened(message: str) -> str:
    return message if len(message) <= SHOWN_CHARACTERS else f"{message[:SHOWN_CHARACTERS]}…"
