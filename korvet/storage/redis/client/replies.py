"""Commands into bytes, replies into values, and what error replies mean.

Values stay bytes. The shapes are RESP2's; RESP3 differs only in maps, which `as_map` reads from either.

Error replies become the exceptions of `errors`, with the server's whole line as their message: its
first word is the error's code, for which `error_code` is the way to ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

from hiredis import pack_command

from korvet.protocol.buffers import Buffer
from korvet.storage.redis.client.errors import (
    AuthenticationError,
    BusyLoadingError,
    ExecAbortError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisConnectionError,
    RedisError,
    ResponseError,
)

Argument = bytes | str | int | float | memoryview
Command = Sequence[Argument]
# What a server can answer. Callers know which of these a command has, and say so with `cast` or a check.
Reply = object

# From this size on a memoryview goes out as the buffer it is. Packing a megabyte takes hiredis 0.9 ms; below a
# few kilobytes a buffer of its own costs more than its copy.
UNCOPIED_BYTES = 4096

CLASSES: dict[str, type[RedisError]] = {
    "EXECABORT": ExecAbortError,
    "LOADING": BusyLoadingError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "WRONGPASS": AuthenticationError,
}

# Codes of a server that cannot serve just now, and may soon: full, read-only, loading, a disk that fails
# (MISCONF), too few replicas, a script that runs on and on.
TEMPORARY = frozenset({
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
})  # fmt: skip

# Redis 6.2 says "ERR Error running script (call to f_…): @user_script:1: -OOM command not allowed …" where later
# ones answer the inner error, and "@user_script: 1: -OOM command …" where a script returns what it has caught.
WRAPPED = re.compile(r"^(?:ERR Error running script .*?|@user_script: \d+:) -([A-Z]+ .*)", re.DOTALL)


def pack(command: Command) -> list[Buffer]:
    """The command's bytes, as one buffer, or more where large memoryviews are passed on as they are."""
    arguments = command if isinstance(command, tuple) else tuple(command)
    if memoryview not in set(map(type, arguments)):
        return [pack_command(cast(tuple[bytes], arguments))]
    return pack_around_buffers(arguments)


def pack_arguments(arguments: tuple[Argument, ...]) -> list[Buffer]:
    """Some arguments of a command, to stand among others' in `command_of`."""
    first, *rest = pack(arguments)
    return [memoryview(first)[len(b"*%d\r\n" % len(arguments)) :], *rest]


class _Heads(dict[int, bytes]):
    """What stands before an argument of some length, and ends the one before it."""

    def __missing__(self, length: int) -> bytes:
        return b"\r\n$%d\r\n" % length


HEADS = _Heads((length, b"\r\n$%d\r\n" % length) for length in range(1024))


def pack_column(values: Sequence[bytes]) -> Buffer:
    """As `pack_arguments`, in a third of the time for thousands of them."""
    parts = [b""] * (2 * len(values) + 1)
    parts[0:-1:2] = map(HEADS.__getitem__, map(len, values))
    parts[1::2] = values
    parts[-1] = b"\r\n"
    return memoryview(b"".join(parts))[2:]


def command_of(count: int, *packed: list[Buffer]) -> list[Buffer]:
    """A command of `count` arguments, which `pack_arguments` has packed."""
    return [b"*%d\r\n" % count, *chain.from_iterable(packed)]


def pack_around_buffers(arguments: tuple[Argument, ...]) -> list[Buffer]:
    """As `pack`, for a command with memoryviews among its arguments."""
    buffers: list[Buffer] = []
    small = bytearray(b"*%d\r\n" % len(arguments))
    for argument in arguments:
        data = argument if isinstance(argument, bytes | memoryview) else str(argument).encode()
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        small += b"$%d\r\n" % size
        if isinstance(data, memoryview) and size >= UNCOPIED_BYTES:
            buffers += (small, data)
            small = bytearray(b"\r\n")
        else:
            small += data
            small += b"\r\n"
    buffers.append(small)
    return buffers


def reply_error(line: str) -> RedisError:
    """The exception for an error reply."""
    wrapped = WRAPPED.match(line)
    if wrapped:
        line = wrapped[1]
    if line == "ERR max number of clients reached":
        return RedisConnectionError(line)
    return CLASSES.get(line.partition(" ")[0], ResponseError)(line)


def error_code(error: BaseException) -> str:
    """The code that an error reply begins with: BUSYGROUP, NOGROUP, MISCONF, …; "" for other exceptions."""
    return str(error).partition(" ")[0] if isinstance(error, RedisError) else ""


def is_temporary(error: BaseException) -> bool:
    """Whether the same command may succeed later without anybody changing it: the server is away or unable."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return False
    return isinstance(error, RedisConnectionError) or error_code(error) in TEMPORARY


def as_map(reply: Reply) -> dict[bytes, Reply]:
    """A map reply: a flat list of keys and values in RESP2, a dict in RESP3; an absent one (None) is empty."""
    if reply is None:
        return {}
    if isinstance(reply, dict):
        return reply
    flat = cast(Sequence[Reply], reply)
    return dict(zip(cast(Iterable[bytes], flat[::2]), flat[1::2], strict=True))


def as_pairs(reply: Reply) -> list[tuple[bytes, Reply]]:
    """The streams of an XREAD reply: a list of [key, entries] in RESP2, a dict in RESP3, None for none."""
    if reply is None:
        return []
    if isinstance(reply, dict):
        return list(reply.items())
    return [(key, entries) for key, entries in cast(Iterable[tuple[bytes, Reply]], reply)]
