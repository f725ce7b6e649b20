"""Sample messages: every declared one, in every version, with random values for its declared fields."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import Any
from uuid import UUID

from korvet.protocol import messages
from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import encode
from korvet.protocol.schema import Field, schema_of, versions_of

RANGES = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}


def declared_in(module: str) -> list[type[Any]]:
    """Return the messages of a module, without the structs inside them."""
    values = vars(import_module(f"{messages.__name__}.{module}")).values()
    return [value for value in values if hasattr(value, "__schema__") and versions_of(value)]


MESSAGES = [cls for module in iter_modules(messages.__path__) for cls in declared_in(module.name)]
BODIES = [cls for cls in MESSAGES if schema_of(cls).key is not None]


def every_version(classes: list[type[Any]]) -> list[tuple[type[Any], int]]:
    return [(cls, version) for cls in classes for version in versions_of(cls)]


def version_id(value: object) -> str:
    """Return the name of a class or version of `every_version` for pytest."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


def structs_of(cls: type[Any]) -> list[type[Any]]:
    """Return a message class and every struct class inside it."""
    inner = [field.struct for field in schema_of(cls).fields if field.struct is not None]
    return [cls, *(struct for each in inner for struct in structs_of(each))]


def sample(cls: type[Any], version: int, random: Random, *, bare: bool = False) -> Any:
    """Return a message or struct with a value other than the default in every field that the version has.

    With `bare`, nullable fields are null, arrays are empty, and there are no tags. Fields of korvet's own are absent.
    """
    values = {}
    for field in schema_of(cls).fields:
        if version not in field.versions or field.is_own:
            values[field.name] = default_of(field)
        elif bare and (field.tag is not None or field.is_array or version in field.nullable):
            null = version in field.nullable and field.tag is None
            values[field.name] = None if null else default_of(field)
        elif field.is_array:
            values[field.name] = [
                value_of(field, version, random, bare=bare) for _ in range(random.randint(1, 3))
            ]
        else:
            values[field.name] = value_of(field, version, random, bare=bare)
    return cls(**values)


def default_of(field: Field) -> Any:
    return [] if field.is_array and field.default is not None else field.default


def value_of(field: Field, version: int, random: Random, *, bare: bool = False) -> Any:
    """Return a random value of the field's type, or of its elements', that is not the default."""
    if field.struct is not None:
        return sample(field.struct, version, random, bare=bare)
    while (value := random_value(field.kafka_type, random)) == field.default:
        pass
    return value


def random_value(kafka_type: str, random: Random) -> Any:
    if kafka_type in RANGES:
        return random.randrange(-RANGES[kafka_type], RANGES[kafka_type])
    if kafka_type == "uint16":
        return random.randrange(2**16)
    if kafka_type == "bool":
        return random.random() < 0.5
    if kafka_type == "float64":
        return random.uniform(-1e20, 1e20)
    if kafka_type == "uuid":
        return UUID(int=random.getrandbits(128))
    if kafka_type == "string":
        return "".join(random.choices("abcxyzÄß€語🙂-._", k=random.choice((1, 5, 20, 200))))
    if kafka_type == "bytes":
        return random.randbytes(random.choice((1, 20, 200)))
    if kafka_type == "records":
        return (random.randbytes(random.choice((1, 61, 300))),)
    raise AssertionError(kafka_type)


def encoded(message: object, version: int) -> bytes:
    pieces: list[Buffer] = []
    encode(message, version, pieces.append)
    return b"".join(pieces)
