"""Encode messages to bytes, and decode them.

`decode` and `encode` run a function that is generated for one version of a message. Its source is generated from the
declaration on first use (`korvet.protocol.field_reading`, `korvet.protocol.field_writing`), compiled, and stored in
`linecache` under a name like `<korvet read FetchRequest v12>`. So tracebacks show its lines, debuggers step through it,
and profilers name it. attrs and cattrs generate code in the same way. This is the only use of `exec` in korvet.

Only `decode` raises ProtocolError for malformed bytes. Generated code raises ValueError, or IndexError and struct.error
at the end of the data. Its allocations are bounded: it refuses lengths and numbers of elements that exceed the
remaining bytes, and messages of more than a million elements or 10,000 tagged fields.
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
from korvet.protocol.steps import Steps

M = TypeVar("M")
# The exceptions that generated readers raise for malformed bytes.
MALFORMED = (IndexError, struct.error, ValueError)
Reader = Callable[[memoryview, int], tuple[M, int]]
Writer = Callable[[M, Callable[[Buffer], None]], None]


StepReader = Callable[[memoryview, int], Steps[tuple[M, int]]]
StepWriter = Callable[[M, Callable[[Buffer], None]], Steps[None]]


def decode(cls: type[M], version: int, data: memoryview, offset: int = 0) -> tuple[M, int]:
    """Decode one message at `offset`. Return the message and the offset of its end.

    `records` fields are views of `data`. All other values are copies. Raises ProtocolError if the bytes are malformed,
    and UnsupportedVersion if the message does not have that version.
    """
    return decoder(cls, version)(data, offset)  # type: ignore[arg-type]  # mypy takes no class for Hashable


def encode(message: object, version: int, put: Callable[[Buffer], None]) -> None:
    """Encode one message, and pass the pieces to `put` (for example `list.append`). Record buffers are not copied.

    Raises UnsupportedVersion if the message does not have that version, or if a field has a value that this version
    cannot express and that must not be ignored (see `schema`).
    """
    writer(type(message), version)(message, put)  # type: ignore[arg-type]  # as above


@cache
def decoder(cls: type[M], version: int) -> Reader[M]:
    """Return `decode` for one version of a message."""
    read = reader(cls, version)  # type: ignore[arg-type]  # as above

    def decode_this(data: memoryview, offset: int) -> tuple[M, int]:
        try:
            return read(data, offset)
        except MALFORMED as error:
            raise malformed(cls, version, error) from error

    return decode_this


@cache
def step_decoder(cls: type[M], version: int) -> StepReader[M]:
    """Return `decode` for one version of a message, in steps: for messages with many elements."""
    check_version(cls, version)
    source, names = reader_source(cls, version, in_steps=True)
    name = f"<korvet read {cls.__name__} v{version} in steps>"
    read = cast(StepReader[M], compile_function(name, source, names))

    def decode_this(data: memoryview, offset: int) -> Steps[tuple[M, int]]:
        try:
            return (yield from read(data, offset))
        except MALFORMED as error:
            raise malformed(cls, version, error) from error

    return decode_this


def malformed(cls: type[Any], version: int, error: Exception) -> ProtocolError:
    """Return the error for an exception of generated code."""
    is_end = isinstance(error, IndexError | struct.error)
    reason = "it ends before its last field" if is_end else str(error)
    return ProtocolError(f"malformed {cls.__name__} version {version}: {reason}")


@cache
def reader(cls: type[M], version: int) -> Reader[M]:
    """Return the function that reads this version of a message."""
    check_version(cls, version)
    source, names = reader_source(cls, version)
    return cast(Reader[M], compile_function(f"<korvet read {cls.__name__} v{version}>", source, names))


@cache
def writer(cls: type[M], version: int) -> Writer[M]:
    """Return the function that writes this version of a message."""
    check_version(cls, version)
    source, names = writer_source(cls, version)
    return cast(Writer[M], compile_function(f"<korvet write {cls.__name__} v{version}>", source, names))


@cache
def step_writer(cls: type[M], version: int) -> StepWriter[M]:
    """Return the function that writes this version of a message in steps: for messages with many elements."""
    check_version(cls, version)
    source, names = writer_source(cls, version, in_steps=True)
    name = f"<korvet write {cls.__name__} v{version} in steps>"
    return cast(StepWriter[M], compile_function(name, source, names))


@cache
def element_writer(message: type[Any], cls: type[M], version: int) -> Writer[M]:
    """Return the function that writes a struct inside that version of a message."""
    check_version(message, version)
    source, names = element_writer_source(message, cls, version)
    return cast(Writer[M], compile_function(f"<korvet write {cls.__name__} v{version}>", source, names))


def check_version(cls: type[Any], version: int) -> None:
    """Raise UnsupportedVersion if a message is not declared for that version."""
    if version not in versions_of(cls):
        message = f"{cls.__name__} has no version {version}"
        raise UnsupportedVersion(message)


def compile_function(filename: str, source: str, names: dict[str, object]) -> Any:
    """Compile the function `run` in `source`, whose free names are `names`."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), names)  # noqa: S102  our own source, from our own declarations
    return names["run"]
