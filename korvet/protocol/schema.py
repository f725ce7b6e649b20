"""Declarations of Kafka messages: one attrs class for all versions of a message, one line per field.

    @message(key=0, versions="3-11", flexible="9+")
    class ProduceRequest:
        transactional_id: str | None = string(nullable="3+", default=None)
        acks: int = int16()
        timeout_ms: int = int32()
        topic_data: list[TopicProduceData] = array(TopicProduceData)

Names, types, versions and defaults are those of Kafka's specifications (`clients/src/main/resources/common/message` in
its sources), in snake_case. Tests compare every line with them. The specifiers below have the names of Kafka's types.
The codec uses the specifiers and not the annotations, so annotations are never evaluated.

- A field is on the wire only in its `versions`. In other versions, reading sets its default, and writing another value
  is an error unless the field is `ignorable`.
- A field without a `default` (or `factory`) is a required argument of the constructor, also for type checkers. In
  versions without it, reading sets Kafka's zero: 0, false, "", an empty list, the zero UUID.
- A field with a `tag` is written after the others, and only if it differs from its default. A struct in a tag defaults
  to None, which means Kafka's "all fields at their defaults".
- `nullable` is the versions in which None may be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, dataclass_transform, overload
from uuid import UUID

import attrs

from korvet.protocol.buffers import Buffer

ZERO_UUID = UUID(int=0)

#: Versions are int16 on the wire; a range "3+" ends here.
MAX_VERSION = 32767

#: The fixed-width types, by their `struct` format.
FIXED_FORMATS = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}

ZEROS: dict[str, Any] = {
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "int64": 0,
    "float64": 0.0,
    "bool": False,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": (),
}


#: Tags from here on are of korvet's own fields, which no other program knows. Kafka's tags count from 0.
FIRST_OWN_TAG = 10_000


@attrs.frozen
class Field:
    """The declaration of a field."""

    name: str
    kafka_type: str  # Kafka's name of the (element's) type; a struct's class name
    struct: type[Any] | None  # the class if the type is a struct
    is_array: bool
    versions: range
    nullable: range
    default: Any  # of an array: None or [], which readers copy
    tag: int | None
    ignorable: bool
    compact: bool  # in flexible versions; False only for the request header's client_id
    encodable: bool = False  # an array whose value may be EncodedElements

    @property
    def is_own(self) -> bool:
        """True for a field of korvet's own, which Kafka's specification does not have."""
        return self.tag is not None and self.tag >= FIRST_OWN_TAG


@attrs.frozen
class Schema:
    """The declaration of a struct. Only messages have versions. Structs in a message have the message's version."""

    name: str
    fields: tuple[Field, ...]
    key: int | None = None
    versions: range = range(0)
    flexible: range = range(0)


def schema_of(cls: type[Any]) -> Schema:
    """Return the declaration of the class of a message or struct."""
    return cast(Schema, cls.__schema__)


def versions_of(cls: type[Any]) -> range:
    """Return the versions that a message is declared for."""
    return schema_of(cls).versions


def is_flexible(cls: type[Any], version: int) -> bool:
    """Return True if that version of a message has compact lengths and tagged fields (KIP-482)."""
    return version in schema_of(cls).flexible


def parse_versions(text: str) -> range:
    """Parse Kafka's notation of versions: "3", "3-9", "3+" or "none"."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), MAX_VERSION + 1)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


# --- Field specifiers ------------------------------------------------------------------------------------


class Required:
    """The type of `REQUIRED`, which means "no default"."""


REQUIRED = Required()

T = TypeVar("T")


def specify(
    type_: str,
    *,
    versions: str,
    default: object,
    factory: Callable[[], object] | None = None,
    nullable: str = "none",
    tag: int | None = None,
    ignorable: bool = False,
    struct: type[Any] | None = None,
    is_array: bool = False,
    compact: bool = True,
    encodable: bool = False,
) -> Any:
    """Make an attrs field with a `Field` in its metadata, complete except for the name."""
    if factory is not None:
        wire_default, attrs_default = factory(), attrs.Factory(factory)
    elif isinstance(default, Required):
        zero: object = [] if is_array else None if struct else ZEROS[type_]
        wire_default, attrs_default = zero, attrs.NOTHING
    else:
        wire_default = attrs_default = default
    field = Field(
        name="",
        kafka_type=type_,
        struct=struct,
        is_array=is_array,
        versions=parse_versions(versions),
        nullable=parse_versions(nullable),
        default=wire_default,
        tag=tag,
        ignorable=ignorable,
        compact=compact,
        encodable=encodable,
    )
    return attrs.field(default=attrs_default, metadata={Field: field})


def int8(
    *,
    versions: str = "0+",
    default: int | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> int:
    """Declare one byte, signed."""
    return cast(int, specify("int8", versions=versions, default=default, tag=tag, ignorable=ignorable))


def int16(
    *,
    versions: str = "0+",
    default: int | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> int:
    """Declare two bytes, signed."""
    return cast(int, specify("int16", versions=versions, default=default, tag=tag, ignorable=ignorable))


def uint16(
    *,
    versions: str = "0+",
    default: int | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> int:
    """Declare two bytes, unsigned."""
    return cast(int, specify("uint16", versions=versions, default=default, tag=tag, ignorable=ignorable))


def int32(
    *,
    versions: str = "0+",
    default: int | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> int:
    """Declare four bytes, signed."""
    return cast(int, specify("int32", versions=versions, default=default, tag=tag, ignorable=ignorable))


def int64(
    *,
    versions: str = "0+",
    default: int | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> int:
    """Declare eight bytes, signed."""
    return cast(int, specify("int64", versions=versions, default=default, tag=tag, ignorable=ignorable))


def float64(
    *,
    versions: str = "0+",
    default: float | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> float:
    """Declare eight bytes, IEEE 754."""
    return cast(float, specify("float64", versions=versions, default=default, tag=tag, ignorable=ignorable))


def boolean(
    *,
    versions: str = "0+",
    default: bool | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> bool:
    """Declare one byte; anything but 0 reads as true."""
    return cast(bool, specify("bool", versions=versions, default=default, tag=tag, ignorable=ignorable))


def uuid(
    *,
    versions: str = "0+",
    default: UUID | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> UUID:
    """Declare sixteen bytes. `ZERO_UUID` means no UUID."""
    return cast(UUID, specify("uuid", versions=versions, default=default, tag=tag, ignorable=ignorable))


@overload
def string(
    *,
    versions: str = "0+",
    default: str | Required = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> str: ...
@overload
def string(
    *,
    nullable: str,
    versions: str = "0+",
    default: str | Required | None = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> str | None: ...
def string(
    *,
    nullable: str = "none",
    versions: str = "0+",
    default: str | Required | None = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> str | None:
    """Declare a UTF-8 string, preceded by its length."""
    return cast(
        str | None,
        specify(
            "string",
            versions=versions,
            nullable=nullable,
            default=default,
            tag=tag,
            ignorable=ignorable,
            compact=compact,
        ),
    )


@overload
def bytes_(
    *, versions: str = "0+", default: bytes | Required = REQUIRED, ignorable: bool = False
) -> bytes: ...
@overload
def bytes_(
    *,
    nullable: str,
    versions: str = "0+",
    default: bytes | Required | None = REQUIRED,
    ignorable: bool = False,
) -> bytes | None: ...
def bytes_(
    *,
    nullable: str = "none",
    versions: str = "0+",
    default: bytes | Required | None = REQUIRED,
    ignorable: bool = False,
) -> bytes | None:
    """Declare bytes, preceded by their length. Reading copies them."""
    return cast(
        bytes | None,
        specify("bytes", versions=versions, nullable=nullable, default=default, ignorable=ignorable),
    )


def records(
    *,
    nullable: str,
    versions: str = "0+",
    default: Sequence[Buffer] | Required | None = REQUIRED,
    ignorable: bool = False,
) -> Sequence[Buffer] | None:
    """Declare record batches, preceded by their length in bytes.

    Reading returns a tuple of one view into the frame, or an empty tuple. Writing accepts any number of buffers, with
    items of one byte, since their `len` must be their size. Writing does not copy them.
    """
    return cast(
        Sequence[Buffer] | None,
        specify("records", versions=versions, nullable=nullable, default=default, ignorable=ignorable),
    )


# `element` is a struct's class, or one of the specifiers above: both are callables that return the element.
@overload
def array(
    element: Callable[..., T],
    *,
    versions: str = "0+",
    factory: Callable[[], list[T]] | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    encodable: bool = False,
) -> list[T]: ...
@overload
def array(
    element: Callable[..., T],
    *,
    nullable: str,
    versions: str = "0+",
    default: Required | None = REQUIRED,
    factory: Callable[[], list[T]] | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> list[T] | None: ...
def array(
    element: Callable[..., T],
    *,
    nullable: str = "none",
    versions: str = "0+",
    default: Required | None = REQUIRED,
    factory: Callable[[], list[T]] | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    encodable: bool = False,
) -> list[T] | None:
    """Declare elements, preceded by their number. With `factory=list`, the default is an empty list.

    The value of an `encodable` array of structs may also be EncodedElements when it is written.
    """
    struct = element if isinstance(element, type) else None
    return cast(
        list[T] | None,
        specify(
            element.__name__ if struct else element_type(element),
            struct=struct,
            is_array=True,
            versions=versions,
            nullable=nullable,
            default=default,
            factory=factory,
            tag=tag,
            ignorable=ignorable,
            encodable=encodable,
        ),
    )


def element_type(specifier: Callable[..., object]) -> str:
    """Return Kafka's name of a specifier's type: the specifier's name, unless Python reserves that name."""
    return {"boolean": "bool", "bytes_": "bytes"}.get(specifier.__name__, specifier.__name__)


@overload
def nested(struct: Callable[..., T], *, versions: str = "0+") -> T: ...
@overload
def nested(
    struct: Callable[..., T], *, nullable: str, versions: str = "0+", default: Required | None = REQUIRED
) -> T | None: ...
@overload
def nested(
    struct: Callable[..., T], *, tag: int, versions: str = "0+", default: None = None, ignorable: bool = False
) -> T | None: ...
def nested(
    struct: Callable[..., T],
    *,
    nullable: str = "none",
    versions: str = "0+",
    default: Required | None = REQUIRED,
    tag: int | None = None,
    ignorable: bool = False,
) -> T | None:
    """Declare a struct inside another. In a tag, None means its default and is not written."""
    cls = cast(type[Any], struct)
    return cast(
        T | None,
        specify(
            cls.__name__,
            struct=cls,
            versions=versions,
            nullable=nullable,
            default=default,
            tag=tag,
            ignorable=ignorable,
        ),
    )


# --- Class decorators ------------------------------------------------------------------------------------

C = TypeVar("C", bound=type[Any])


def declare(cls: C, **schema: Any) -> C:
    """Convert a declaration to an attrs class, and set its Schema."""
    cls = attrs.define(kw_only=True)(cls)
    fields = tuple(attrs.evolve(a.metadata[Field], name=a.name) for a in attrs.fields(cls))
    cls.__schema__ = Schema(cls.__name__, fields, **schema)
    return cls


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        int8,
        int16,
        uint16,
        int32,
        int64,
        float64,
        boolean,
        uuid,
        string,
        bytes_,
        records,
        array,
        nested,
    ),
)
def struct(cls: C) -> C:
    """Declare a struct inside a message."""
    return declare(cls)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        int8,
        int16,
        uint16,
        int32,
        int64,
        float64,
        boolean,
        uuid,
        string,
        bytes_,
        records,
        array,
        nested,
    ),
)
def message(*, key: int | None, versions: str, flexible: str) -> Callable[[C], C]:
    """Declare a request, a response, or a header (without key). These have versions, unlike structs."""

    def decorate(cls: C) -> C:
        return declare(cls, key=key, versions=parse_versions(versions), flexible=parse_versions(flexible))

    return decorate
