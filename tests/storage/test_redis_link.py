"""The link on a stream in memory, where the test plays the server: order, batching, silence, nonsense."""

from __future__ import annotations

import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
import trio.testing
from attrs import define

from korvet.storage.redis.client.errors import NoScriptError
from korvet.storage.redis.client.link import ConnectionLost, Link, NotConnected, Pending
from korvet.storage.redis.client.replies import pack, pack_all
from korvet.storage.redis.client.script import Script
from korvet.storage.redis.client.transport import SocketTransport, StreamTransport, Transport


@define
class Server:
    """The server's end of a link, which the test controls."""

    stream: trio.testing.MemoryReceiveStream
    replies: trio.testing.MemorySendStream
    link: Link

    async def written(self) -> bytes:
        await trio.testing.wait_all_tasks_blocked()
        return bytes(await self.stream.receive_some())

    async def answer(self, data: bytes) -> None:
        await self.replies.send_all(data)
        await trio.testing.wait_all_tasks_blocked()

    def send(self, *command: bytes, limit_s: float = 60.0) -> Pending:
        pending = Pending(pack(command), 0, limit_s)
        self.link.enqueue(pending)
        return pending


@asynccontextmanager
async def served_link() -> AsyncIterator[Server]:
    ours, theirs = trio.testing.memory_stream_pair()
    async with serving(StreamTransport(ours)) as link:
        yield Server(theirs.receive_stream, theirs.send_stream, link)


@asynccontextmanager
async def link_on_a_socket() -> AsyncIterator[tuple[Link, socket.socket]]:
    """Yield a link on a socket, and the blocking socket of its other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        async with serving(SocketTransport(ours)) as link:
            yield link, theirs


@asynccontextmanager
async def serving(transport: Transport) -> AsyncIterator[Link]:
    """Yield a running link on the transport. At the end, its pending commands fail."""
    link = Link(transport, 60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.serve)
        await trio.testing.wait_all_tasks_blocked()
        yield link
        nursery.cancel_scope.cancel()
    link.fail_all()


async def test_commands_of_one_scheduling_step_are_sent_in_one_write() -> None:
    async with served_link() as server:
        for number in range(3):
            server.send(b"GET", b"%d" % number)

        assert await server.written() == b"".join(b"*2\r\n$3\r\nGET\r\n$1\r\n%d\r\n" % n for n in range(3))


async def test_replies_are_matched_to_the_oldest_pending_command() -> None:
    async with served_link() as server:
        pending = [server.send(b"GET", b"a"), server.send(b"GET", b"b")]
        await server.answer(b"$1\r\n1\r\n$1\r\n2\r\n")

        assert [b"1", b"2"] == [await one.wait() for one in pending]


async def test_replies_are_parsed_byte_by_byte() -> None:
    async with served_link() as server:
        pending = server.send(b"GET", b"a")
        for byte in b"*2\r\n$1\r\n1\r\n:17\r\n":
            await server.answer(bytes([byte]))

        assert [b"1", 17] == await pending.wait()


async def test_lost_script_is_loaded_and_the_write_repeated_behind_it() -> None:
    script = Script(b"return 1")
    async with served_link() as server:
        pending = Pending(pack_all([script.command([b"k"]), (b"PING",)]), 2, 60.0, None, (script,), [])
        server.link.enqueue(pending)
        call = await server.written()
        next_one = server.send(b"GET", b"a")
        await server.answer(b"-NOSCRIPT No matching script\r\n+PONG\r\n")

        load = b"".join(pack((b"SCRIPT", b"LOAD", script.source)))
        assert (await server.written()).endswith(load + call)
        await server.answer(b"+a\r\n$1\r\ns\r\n:1\r\n+PONG\r\n")
        assert ([1, b"PONG"], b"a") == (await pending.wait(), await next_one.wait())


async def test_script_that_is_refused_twice_is_an_error() -> None:
    script = Script(b"return 1")
    async with served_link() as server:
        pending = Pending(pack(script.command([b"k"])), 0, 60.0, None, (script,))
        server.link.enqueue(pending)
        await server.answer(b"-NOSCRIPT No matching script\r\n")
        await server.answer(b"-NOPERM this user may not load\r\n-NOSCRIPT No matching script\r\n")

        with pytest.raises(NoScriptError):
            await pending.wait()


async def test_reply_of_a_cancelled_command_is_discarded() -> None:
    async with served_link() as server:
        first, second = server.send(b"GET", b"a"), server.send(b"GET", b"b")
        await server.written()
        with trio.move_on_after(0):
            await first.wait()
        await server.answer(b"+first\r\n+second\r\n")

        assert b"second" == await second.wait()


async def test_command_cancelled_before_it_is_written_is_dropped() -> None:
    async with served_link() as server:
        first, second, third = (server.send(b"GET", key) for key in (b"a", b"b", b"c"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await second.wait()
        await server.answer(b"+first\r\n+third\r\n")

        assert b"$1\r\nb\r\n" not in await server.written()
        assert b"first" == await first.wait()
        assert b"third" == await third.wait()


async def test_idle_link_keeps_no_replies() -> None:
    async with served_link() as server:
        first, second = server.send(b"GET", b"a"), server.send(b"GET", b"b")
        await server.answer(b"+first\r\n+second\r\n")
        assert [b"first", b"second"] == [await first.wait(), await second.wait()]
        kept = [weakref.ref(first), weakref.ref(second)]
        del first, second
        await trio.testing.wait_all_tasks_blocked()

        assert [None, None] == [each() for each in kept]


async def test_command_is_sent_immediately_when_none_is_pending() -> None:
    async with link_on_a_socket() as (link, theirs):
        first, second = (Pending(pack((b"GET", key)), 0, 60.0) for key in (b"a", b"b"))
        link.enqueue(first)
        link.enqueue(second)

        assert b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n" == theirs.recv(1000)
        await trio.testing.wait_all_tasks_blocked()
        assert b"*2\r\n$3\r\nGET\r\n$1\r\nb\r\n" == theirs.recv(1000)
        theirs.send(b"+first\r\n+second\r\n")
        assert [b"first", b"second"] == [await first.wait(), await second.wait()]


async def test_partially_sent_command_is_completed_before_later_ones() -> None:
    async with link_on_a_socket() as (link, theirs):
        large = b"x" * 4_000_000  # more than the system takes at once
        commands = [(b"SET", b"a", memoryview(large)), (b"GET", b"a")]
        expected = b"".join(bytes(buffer) for command in commands for buffer in pack(command))
        for command in commands:
            link.enqueue(Pending(pack(command), 0, 60.0))
        received = await trio.to_thread.run_sync(receive_exactly, theirs, len(expected))

        assert expected == received


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := sock.recv(1 << 20)):
        data += chunk
    return data


async def test_notify_is_called_in_the_order_of_the_replies() -> None:
    seen: list[object] = []
    async with served_link() as server:
        for number in range(3):
            pending = Pending(pack((b"GET", number)), 0, 60.0, lambda pending: seen.append(pending.reply))
            server.link.enqueue(pending)
        await server.answer(b":0\r\n:1\r\n-ERR no\r\n")

    assert ["0", "1", "ERR no"] == [str(reply) for reply in seen]


async def test_several_commands_are_answered_together() -> None:
    async with served_link() as server:
        pending = Pending(pack((b"PING",)) * 2, 2, 60.0, reply=[])
        server.link.enqueue(pending)
        await server.answer(b"+PONG\r\n-ERR no\r\n")
        replies = await pending.wait()

        assert ["b'PONG'", "ERR no"] == [str(reply) for reply in cast(list[object], replies)]


async def test_resp3_push_messages_are_ignored() -> None:
    async with served_link() as server:
        pending = server.send(b"GET", b"a")
        await server.answer(b">2\r\n+invalidate\r\n*1\r\n+a\r\n#f\r\n")

        assert await pending.wait() is False


@pytest.mark.parametrize(
    "nonsense,cause",
    [(b"!bang\r\n", "Protocol error"), (b"+unasked\r\n", "spoke unasked"), (b"-ERR bye\r\n", "ERR bye")],
)
async def test_malformed_reply_ends_the_link_and_fails_pending_commands(nonsense: bytes, cause: str) -> None:
    async with served_link() as server:
        await server.answer(nonsense)
        late = server.send(b"GET", b"a")
        server.link.fail_all()
        with pytest.raises(NotConnected, match=cause):
            await late.wait()

    assert cause in server.link.cause


async def test_outcome_of_written_commands_is_unknown_and_others_were_not_sent() -> None:
    async with served_link() as server:
        written = server.send(b"INCR", b"a")
        await server.written()
        await server.replies.aclose()
        await trio.testing.wait_all_tasks_blocked()
        never_written = server.send(b"INCR", b"b")
        server.link.fail_all()
        with pytest.raises(ConnectionLost, match="outcome unknown: it closed the connection"):
            await written.wait()
        with pytest.raises(NotConnected, match="not sent"):
            await never_written.wait()


async def test_silence_ends_the_link_when_the_oldest_command_has_waited_too_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served_link() as server:
        server.send(b"XREAD", limit_s=30.0)
        server.send(b"GET", b"a", limit_s=5.0)
        await trio.sleep(29.0)
        silent_so_far = server.link.cause
        await trio.sleep(2.0)

        assert ("", "it does not answer") == (silent_so_far, server.link.cause)


async def test_time_limit_begins_with_the_command_and_not_with_one_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served_link() as server:
        answered = server.send(b"GET", b"a", limit_s=10.0)
        await trio.sleep(8.0)
        await server.answer(b"$1\r\n1\r\n")
        await answered.wait()
        server.send(b"GET", b"b", limit_s=10.0)
        await trio.sleep(9.0)  # the first command's limit is over
        silent_so_far = server.link.cause
        await trio.sleep(2.0)

        assert ("", "it does not answer") == (silent_so_far, server.link.cause)


async def test_shorter_time_limit_holds_behind_a_longer_one(autojump_clock: trio.testing.MockClock) -> None:
    async with served_link() as server:
        answered = server.send(b"GET", b"a", limit_s=60.0)
        await server.answer(b"$1\r\n1\r\n")
        await answered.wait()
        server.send(b"GET", b"b", limit_s=3.0)
        await trio.sleep(4.0)

        assert server.link.cause == "it does not answer"


async def test_received_bytes_restart_the_time_limit(autojump_clock: trio.testing.MockClock) -> None:
    async with served_link() as server:
        server.send(b"GET", b"a", limit_s=5.0)
        pending = server.send(b"GET", b"b", limit_s=5.0)
        for part in (b"$1\r\n", b"1\r\n", b"$1\r\n", b"2\r\n"):
            await trio.sleep(4.0)
            await server.answer(part)

        assert (b"2", "") == (await pending.wait(), server.link.cause)


async def test_idle_link_stays_open(autojump_clock: trio.testing.MockClock) -> None:
    async with served_link() as server:
        server.send(b"GET", b"a", limit_s=1.0)
        await server.answer(b"+1\r\n")
        await trio.sleep(86_000)

        assert "" == server.link.cause


async def test_repr_contains_the_state() -> None:
    async with served_link() as server:
        server.send(b"GET", b"a")
        await server.written()
        server.send(b"GET", b"b")

        assert "<Link unsent=1 waiting=1 open>" == repr(server.link)
