"""Messages to bytes and back.

`decode` and `encode` run a function written for one message in one version. Its source is generated from the
declaration on first use (`korvet.protocol.field_reading`, `korvet.protocol.field_writing`), compiled, and kept in
`linecache` under a name like `<korvet read FetchRequest v12>`, so tracebacks show its lines, debuggers step
through it and profilers name it. This is how attrs and cattrs do it, and it is the only `exec` of korvet.

Whatever is wrong with bytes becomes a ProtocolError here, in `decode`, and nowhere else: generated code
raises ValueError, or falls into IndexError and struct.error at the end of the data. What it allocates is
bounded: no length and no number of elements is believed beyond the bytes that are there, and a message has at
most a million elements.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import ProtocolError, UnsupportedVersion
from korvet.protocol.field_reading import reader_source
from korvet.protocol.field_writing import element_writer_source, writer_source
from korvet.protocol.schema import versions_of

M = TypeVar("M")
Reader = Callable[[memoryview, int], tuple[M, int]]
Writer = Callable[[M, Callable[[Buffer], None]], None]


def decode(cls: type[M], version: int, data: memoryview, offset: int = 0) -> tuple[M, int]:
    """Read one message at `offset`; the message, and where it ended.

    `records` fields are views of `data`; everything else is copied out. Raises ProtocolError when the bytes
    are no such message, UnsupportedVersion when there is no such version.
    """
    return decoder(cls, version)(data, offset)  # type: ignore[arg-type]  # mypy takes no class for Hashable


def encode(message: object, version: int, put: Callable[[Buffer], None]) -> None:
    """Write one message, piece by piece, to `put` (as `list.append`); record buffers are passed on as they are.

    Raises UnsupportedVersion when there is no such version, or when a field holds a value which this version
    cannot express and which must not be left out silently (see `schema`).
    """
    writer(type(message), version)(message, put)  # type: ignore[arg-type]  # as above


@cache
def decoder(cls: type[M], version: int) -> Reader[M]:
    """`decode` for one message in one version."""
    read = reader(cls, version)  # type: ignore[arg-type]  # as above

    def decode_this(data: memoryview, offset: int) -> tuple[M, int]:
        try:
            return read(data, offset)
        except (IndexError, struct.error) as error:
            message = f"malformed {cls.__name__} version {version}: it ends before its last field"
            raise ProtocolError(message) from error
        except ValueError as error:
            message = f"malformed {cls.__name__} version {version}: {error}"
            raise ProtocolError(message) from error

    return decode_this


@cache
def reader(cls: type[M], version: int) -> Reader[M]:
    """The function that reads this version of a message."""
    check_version(cls, version)
    source, names = reader_source(cls, version)
    return cast(Reader[M], compile_function(f"<korvet read {cls.__name__} v{version}>", source, names))


@cache
def writer(cls: type[M], version: int) -> Writer[M]:
    """The function that writes this version of a message."""
    check_version(cls, version)
    source, names = writer_source(cls, version)
    return cast(Writer[M], compile_function(f"<korvet write {cls.__name__} v{version}>", source, names))


@cache
def element_writer(message: type[Any], cls: type[M], version: int) -> Writer[M]:
    """Return the function that writes a struct as that version of a message holds it."""
    check_version(message, version)
    source, names = element_writer_source(message, cls, version)
    return cast(Writer[M], compile_function(f"<korvet write {cls.__name__} v{version}>", source, names))


def check_version(cls: type[Any], version: int) -> None:
    """Refuse versions that a message is not declared for."""
    if version not in versions_of(cls):
        message = f"{cls.__name__} has no version {version}"
        raise UnsupportedVersion(message)


def compile_function(filename: str, source: str, names: dict[str, object]) -> Any:
    """Compile the function `run` in `source`, whose free names are `names`."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), names)  # noqa: S102  our own source, from our own declarations
    return names["run"]
