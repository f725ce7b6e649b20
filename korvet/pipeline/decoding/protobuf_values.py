"""Protobuf: decode values to rows of one message type.

An absent field is null if the schema tracks presence; otherwise it has its default (proto3 without `optional`).
Protobuf treats a field that was written with another type like an unknown field. Here it is a fault; so is a number
that is not a constant of its enum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from attrs import frozen
from google.protobuf import json_format, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from korvet.pipeline.decoding.confluent import SchemaId, message_indexes, schema_id
from korvet.pipeline.decoding.leaves import Faults, Row, SchemaFault, Unfit, rows_of
from korvet.pipeline.decoding.protobuf_schemas import (
    FREE_FORM,
    TIMESTAMP,
    WRAPPERS,
    descriptors_of,
    is_map,
    message_type,
    name_at,
)
from korvet.pipeline.decoding.registry import NotRegistered, Registry

Get = Callable[[Any], Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@frozen
class ProtobufValues:
    """Reader of values into rows of one message type. `registry` resolves schema ids; None without framing."""

    descriptors: bytes  # a FileDescriptorSet
    message: str  # full name
    registry: Registry | None = None
    truncate_nanoseconds: bool = False

    def objects(self, values: Sequence[bytes | None], faults: Faults) -> list[Row | None]:
        """Return the row of each message; None for a null value and for a bad one, which is added to `faults`."""
        return rows_of(values, self.row, faults)

    def row(self, value: bytes) -> Row:
        """Decode one value. Raises Unfit, RegistryError."""
        begin = 0
        if self.registry is not None:
            number, begin = schema_id(value)
            indexes, begin = message_indexes(value, begin)
            written = written_as(self.registry, number, indexes)
            if written != self.message:
                raise Unfit(f"is a {written}, not a {self.message}")
        reader, to_row = reader_of(self.descriptors, self.message, truncate=self.truncate_nanoseconds)
        message = reader()
        try:
            message.ParseFromString(value[begin:])
        except DecodeError as error:
            raise Unfit(f"is not a {self.message}: {error}") from None
        row: Row = to_row(message)
        return row


@cache
def written_as(registry: Registry, number: SchemaId, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message type that a frame names. Raises Unfit."""
    try:
        descriptors = descriptors_of(registry, registry.written_with(number, "PROTOBUF"))
    except (NotRegistered, SchemaFault) as error:
        raise Unfit(f"schema {number}: {error}") from None
    name = name_at(descriptors, indexes)
    if name is None:
        raise Unfit(f"names message {list(indexes)} of schema {number}, which has none there")
    return name


@cache
def reader_of(descriptors: bytes, name: str, *, truncate: bool) -> tuple[type[Message], Get]:
    """Return the message class of a type, and the function that converts its messages to rows."""
    found = message_type(descriptors, name)
    return message_factory.GetMessageClass(found), row_maker(found, truncate=truncate)


def row_maker(message: Descriptor, *, truncate: bool) -> Get:
    getters = [(one.name, getter(one, truncate=truncate)) for one in message.fields]
    known = {one.number: one.name for one in message.fields}

    def to_row(value: Any) -> Row:
        strangers = unknown_fields.UnknownFieldSet(value)
        if len(strangers):
            refuse_misread(strangers, known)
        return {name: get(value) for name, get in getters}

    return to_row


def refuse_misread(strangers: Any, known: dict[int, str]) -> None:
    """Raise Unfit for unknown fields whose number the type has. Other unknown fields are ignored."""
    for stranger in strangers:
        if stranger.field_number in known:
            name = known[stranger.field_number]
            raise Unfit(
                f"{name} (field {stranger.field_number}) was written with another type, or with an unknown constant"
            )


def getter(one: FieldDescriptor, *, truncate: bool) -> Get:
    """Return a function that gets a field from a message."""
    name = one.name
    if is_map(one):
        convert = converter(one.message_type.fields_by_name["value"], truncate=truncate)
        return lambda message: {key: convert(each) for key, each in getattr(message, name).items()}
    convert = converter(one, truncate=truncate)
    if one.is_repeated:
        return lambda message: [convert(each) for each in getattr(message, name)]
    if one.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def converter(one: FieldDescriptor, *, truncate: bool) -> Get:
    """Return a function that converts a single value to the type of its column."""
    message = one.message_type
    if message is None:
        if one.type == FieldDescriptor.TYPE_ENUM:
            return constant_namer(one)
        return lambda value: value
    if message.full_name == TIMESTAMP:
        return lambda value: moment(value, truncate=truncate)
    if message.full_name in WRAPPERS:
        return lambda value: value.value
    if message.full_name in FREE_FORM:
        return free_form
    return row_maker(message, truncate=truncate)


def constant_namer(one: FieldDescriptor) -> Get:
    names = {number: each.name for number, each in one.enum_type.values_by_number.items()}

    def name(number: int) -> str:
        if number not in names:
            raise Unfit(f"{one.name}: {number} is not a constant of {one.enum_type.full_name}")
        return str(names[number])

    return name


def moment(value: Any, *, truncate: bool) -> datetime:
    if value.nanos % 1000 and not truncate:
        raise Unfit(
            f"a timestamp has {value.nanos} nanoseconds, which truncate_nanoseconds = true would cut off"
        )
    try:
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError:
        raise Unfit(f"a timestamp of {value.seconds} s is out of range") from None


def free_form(value: Any) -> str:
    try:
        return str(json_format.MessageToJson(value, indent=None))
    except (TypeError, ValueError, json_format.Error) as error:
        raise Unfit(f"holds what cannot be shown as JSON: {error}") from None
