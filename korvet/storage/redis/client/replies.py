"""Pack commands, convert replies to values, and convert error replies to exceptions.

Values stay bytes. The shapes are RESP2's; RESP3 differs only in maps, which `as_map` reads from either.

Error replies become the exceptions of `errors`, with the server's whole line as their message. Its first word is the
error's code, which `error_code` returns.
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
# Any value that a server can answer. Callers narrow it to the type of the command's reply, with `cast` or a check.
Reply = object

# From this size on a memoryview is sent without a copy. hiredis takes 0.9 ms to pack a megabyte; below a few kilobytes
# a separate buffer costs more than the copy.
UNCOPIED_BYTES = 4096
# Average size of a column's values from which they are sent without a copy. Each takes two buffers, and through TLS two
# writes.
UNCOPIED_VALUE_BYTES = 64 * 1024

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

# Codes of a server that temporarily cannot serve: full, read-only, loading, a failing disk (MISCONF), too few replicas,
# a script that runs for too long.
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

# Codes of a node of a Redis Cluster that has not executed the command: the slot is elsewhere, moves, or has no node.
REDIRECTIONS = frozenset({"ASK", "CLUSTERDOWN", "MOVED", "TRYAGAIN"})

# Redis 6.2 answers "ERR Error running script (call to f_…): @user_script:1: -OOM command not allowed …" where later
# versions answer the inner error, and "@user_script: 1: -OOM command …" if a script returns an error it has caught.
WRAPPED = re.compile(r"^(?:ERR Error running script .*?|@user_script: \d+:) -([A-Z]+ .*)", re.DOTALL)


def pack(command: Command) -> list[Buffer]:
    """Return the command's bytes, as one buffer, or several if it has large memoryviews, which are not copied."""
    arguments = command if isinstance(command, tuple) else tuple(command)
    if memoryview not in set(map(type, arguments)):
        return [pack_command(cast(tuple[bytes], arguments))]
    return pack_around_buffers(arguments)


def pack_all(commands: Sequence[Command]) -> list[Buffer]:
    """Return the bytes of several commands, as `pack` does."""
    buffers: list[Buffer] = []
    for command in commands:
        arguments = command if isinstance(command, tuple) else tuple(command)
        if memoryview in set(map(type, arguments)):
            buffers += pack_around_buffers(arguments)
        else:
            buffers.append(pack_command(cast(tuple[bytes], arguments)))
    return buffers


def pack_arguments(arguments: tuple[Argument, ...]) -> list[Buffer]:
    """Pack some arguments of a command, for use in `command_of`."""
    if memoryview not in set(map(type, arguments)):
        first = pack_command(cast(tuple[bytes], arguments))
        return [memoryview(first)[len(b"*%d\r\n" % len(arguments)) :]]
    first, *rest = pack_around_buffers(arguments)
    return [memoryview(first)[len(b"*%d\r\n" % len(arguments)) :], *rest]


class _Heads(dict[int, bytes]):
    """Argument headers by length, each with the line end of the preceding argument."""

    def __missing__(self, length: int) -> bytes:
        return b"\r\n$%d\r\n" % length


HEADS = _Heads((length, b"\r\n$%d\r\n" % length) for length in range(1024))


def pack_column(values: Sequence[bytes]) -> list[Buffer]:
    """Pack arguments as `pack_arguments` does, in a third of its time for thousands of them. Do not copy large ones."""
    lengths = list(map(len, values))
    parts = [b""] * (2 * len(values) + 1)
    parts[0:-1:2] = map(HEADS.__getitem__, lengths)
    parts[1::2] = values
    parts[-1] = b"\r\n"
    if sum(lengths) >= UNCOPIED_VALUE_BYTES * len(values):
        return [parts[0][2:], *parts[1:]]
    return [memoryview(b"".join(parts))[2:]]


def command_of(head: tuple[Argument, ...], count: int, packed: Iterable[list[Buffer]]) -> list[Buffer]:
    """Return a command that begins with small arguments, and goes on with `count` arguments packed in advance."""
    first = pack_command(cast(tuple[bytes], head))
    rest = memoryview(first)[len(b"*%d\r\n" % len(head)) :]
    return [b"*%d\r\n" % (len(head) + count), rest, *chain.from_iterable(packed)]


def pack_around_buffers(arguments: tuple[Argument, ...]) -> list[Buffer]:
    """Pack a command with memoryviews among its arguments, as `pack` does."""
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
    """Return the exception for an error reply."""
    wrapped = WRAPPED.match(line)
    if wrapped:
        line = wrapped[1]
    if line == "ERR max number of clients reached":
        return RedisConnectionError(line)
    return CLASSES.get(line.partition(" ")[0], ResponseError)(line)


def error_code(error: BaseException) -> str:
    """Return the code that an error reply begins with: BUSYGROUP, NOGROUP, MISCONF, …; "" for other exceptions."""
    return str(error).partition(" ")[0] if isinstance(error, RedisError) else ""


def is_redirection(error: BaseException) -> bool:
    """Return True if a node of a Redis Cluster has not executed the command, which may be sent again."""
    return error_code(error) in REDIRECTIONS


def is_temporary(error: BaseException) -> bool:
    """Return True if the unchanged command may succeed later: the server is unavailable, or cannot serve at present."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return False
    return isinstance(error, RedisConnectionError) or error_code(error) in TEMPORARY


def as_map(reply: Reply) -> dict[bytes, Reply]:
    """Convert a map reply: a flat list of keys and values in RESP2, a dict in RESP3; None becomes an empty dict."""
    if reply is None:
        return {}
    if isinstance(reply, dict):
        return reply
    flat = cast(Sequence[Reply], reply)
    return dict(zip(cast(Iterable[bytes], flat[::2]), flat[1::2], strict=True))


def as_pairs(reply: Reply) -> list[tuple[bytes, Reply]]:
    """Return the streams of an XREAD reply: a list of [key, entries] in RESP2, a dict in RESP3, None for none."""
    if reply is None:
        return []
    if isinstance(reply, dict):
        return list(reply.items())
    return [(key, entries) for key, entries in cast(Iterable[tuple[bytes, Reply]], reply)]
