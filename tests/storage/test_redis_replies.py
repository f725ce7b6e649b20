"""Commands into bytes, error replies into exceptions, maps out of either protocol."""

from __future__ import annotations

from itertools import product

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions

from korvet.storage.redis.client import errors as redis_errors
from korvet.storage.redis.client.replies import (
    UNCOPIED_BYTES,
    UNCOPIED_VALUE_BYTES,
    Argument,
    as_map,
    as_pairs,
    command_of,
    error_code,
    is_temporary,
    pack,
    pack_arguments,
    pack_column,
    reply_error,
)


def parsed(data: bytes) -> object:
    reader = hiredis.Reader()
    reader.feed(data)
    return reader.gets()


@given(
    st.lists(
        st.binary() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_packed_commands_are_parsed_as_sent(arguments: list[Argument], with_view: bool) -> None:
    if with_view:
        arguments = [*arguments, memoryview(b"v" * (UNCOPIED_BYTES + 1)), memoryview(b"short"), b"end"]
    packed = b"".join(pack(arguments))

    def as_bytes(argument: Argument) -> bytes:
        return bytes(argument) if isinstance(argument, bytes | memoryview) else str(argument).encode()

    assert [as_bytes(argument) for argument in arguments] == parsed(packed)


def test_command_is_built_from_packed_parts() -> None:
    view = memoryview(b"v" * UNCOPIED_BYTES)
    column = [b"", b"x", b"y" * 2000]
    buffers = command_of((b"XADD", "key"), 5, [pack_arguments((1, view)), pack_column(column)])

    assert [b"XADD", b"key", b"1", bytes(view), *column] == parsed(b"".join(buffers))


def test_large_memoryview_is_not_copied() -> None:
    view = memoryview(bytearray(UNCOPIED_BYTES))
    buffers = pack((b"SET", b"key", view))

    assert any(buffer is view for buffer in buffers)


def test_large_values_of_a_column_are_not_copied() -> None:
    column = [b"x" * UNCOPIED_VALUE_BYTES, b"y" * UNCOPIED_VALUE_BYTES]
    buffers = command_of((b"XADD",), 2, [pack_column(column)])

    assert [b"XADD", *column] == parsed(b"".join(buffers))
    assert all(any(buffer is value for buffer in buffers) for value in column)


@pytest.mark.parametrize(
    "line,expected",
    [
        ("NOSCRIPT No matching script. Please use EVAL.", redis_errors.NoScriptError),
        ("OOM command not allowed when used memory > 'maxmemory'.", redis_errors.OutOfMemoryError),
        ("READONLY You can't write against a read only replica.", redis_errors.ReadOnlyError),
        ("LOADING Redis is loading the dataset in memory", redis_errors.BusyLoadingError),
        ("NOPERM this user has no permissions", redis_errors.NoPermissionError),
        ("WRONGPASS invalid username-password pair", redis_errors.AuthenticationError),
        ("NOAUTH Authentication required.", redis_errors.AuthenticationError),
        ("EXECABORT Transaction discarded", redis_errors.ExecAbortError),
        ("ERR max number of clients reached", redis_errors.RedisConnectionError),
        (
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
            redis_errors.OutOfMemoryError,
        ),
        ("@user_script: 477: -OOM command not allowed when used memory", redis_errors.OutOfMemoryError),
        ("ERR unknown command", redis_errors.ResponseError),
        ("BUSYGROUP Consumer Group name already exists", redis_errors.ResponseError),
    ],
)
def test_error_replies_become_exceptions(line: str, expected: type[Exception]) -> None:
    assert expected is type(reply_error(line))


def test_exceptions_have_the_bases_of_redis_py() -> None:
    ours = {name: each for name, each in vars(redis_errors).items() if isinstance(each, type)}
    theirs = {name: getattr(exceptions, name.replace("RedisConnection", "Connection")) for name in ours}

    assert {
        (name, other): issubclass(ours[name], ours[other]) for name, other in product(ours, repeat=2)
    } == {(name, other): issubclass(theirs[name], theirs[other]) for name, other in product(ours, repeat=2)}


def test_error_code_is_the_first_word() -> None:
    assert "BUSYGROUP" == error_code(reply_error("BUSYGROUP Consumer Group name already exists"))


def test_only_transient_errors_are_temporary() -> None:
    lines = ["OOM x", "READONLY x", "LOADING x", "MISCONF x", "NOAUTH x", "NOPERM x", "ERR x", "WRONGTYPE x"]

    assert [True] * 4 + [False] * 4 == [is_temporary(reply_error(line)) for line in lines]


def test_maps_are_parsed_equally_in_both_protocols() -> None:
    assert as_map([b"a", 1, b"b", 2]) == as_map({b"a": 1, b"b": 2}) == {b"a": 1, b"b": 2}
    assert {} == as_map(None)


def test_streams_are_parsed_equally_in_both_protocols() -> None:
    assert as_pairs([[b"a", [1]]]) == as_pairs({b"a": [1]}) == [(b"a", [1])]
    assert [] == as_pairs(None)
