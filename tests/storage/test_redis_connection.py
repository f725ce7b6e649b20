"""The connection on real servers: logging in, TLS, both protocols, and every way a server can go away."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
import trustme
from attrs import evolve

from korvet.storage.redis.client import errors as redis_errors
from korvet.storage.redis.client import link as redis_link
from korvet.storage.redis.client.address import parse_address
from korvet.storage.redis.client.connection import (
    ConnectionLost,
    NotConnected,
    Pending,
    RedisConnection,
    Script,
    open_connection,
)
from korvet.storage.redis.client.replies import as_map, is_temporary
from tests.servers import RedisServer, ServerPair, StartServer

ECHO = Script(b"return ARGV[1]")
INCREMENT = Script(b"return redis.call('INCRBY', KEYS[1], ARGV[1])")


async def run(
    redis: RedisConnection,
    script: Script,
    keys: Sequence[bytes],
    args: Sequence[bytes | int],
    *,
    repeatable: bool = False,
) -> object:
    return await redis.execute(*script.command(keys, args), scripts=(script,), repeatable=repeatable)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[RedisConnection]:
    async with open_connection(redis_server.url) as connection:
        yield connection


# --- Commands ------------------------------------------------------------------------------------------------


async def test_thousand_tasks_get_their_own_replies(redis: RedisConnection) -> None:
    wrong: list[object] = []

    async def ask(number: int) -> None:
        for turn in range(20):
            expected = b"%d-%d" % (number, turn)
            if await redis.execute(b"ECHO", expected) != expected:
                wrong.append(expected)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(ask, number)

    assert [] == wrong


async def test_megabytes_are_sent_and_received_unchanged(redis: RedisConnection) -> None:
    value = bytes(range(256)) * 20_000
    replies = await redis.pipeline(
        [(b"SET", b"key", memoryview(value)), (b"GET", b"key"), (b"STRLEN", b"key"), (b"DEL", b"key")]
    )

    assert [b"OK", value, len(value), 1] == replies


async def test_pipeline_returns_a_reply_or_error_for_each_command(redis: RedisConnection) -> None:
    replies = await redis.pipeline([(b"SET", b"a", 1), (b"LPUSH", b"a", 1), (b"GET", b"a")])

    assert [bytes, redis_errors.ResponseError, bytes] == [type(reply) for reply in replies]
    assert [] == await redis.pipeline([])


async def test_pipeline_of_one_command_returns_a_list(redis: RedisConnection) -> None:
    assert [b"a"] == await redis.pipeline([(b"ECHO", b"a")])


async def test_execute_raises_the_error_reply(redis: RedisConnection) -> None:
    await redis.execute(b"SET", b"a", b"1")
    with pytest.raises(redis_errors.ResponseError, match="WRONGTYPE"):
        await redis.execute(b"LPUSH", b"a", b"1")


async def test_transaction_returns_the_reply_of_exec(redis: RedisConnection) -> None:
    replies = await redis.transaction([(b"SET", b"a", 1), (b"LPUSH", b"a", 1), (b"INCR", b"a")])

    assert (replies[0], type(replies[1]), replies[2]) == (b"OK", redis_errors.ResponseError, 2)


async def test_refused_transaction_raises_the_reason(redis: RedisConnection) -> None:
    with pytest.raises(redis_errors.ResponseError, match="unknown command"):
        await redis.transaction([(b"SET", b"a", 1), (b"NONSENSE",)])

    assert 0 == await redis.execute(b"EXISTS", b"a")


async def test_sent_commands_keep_their_order_before_any_checkpoint(redis: RedisConnection) -> None:
    answered: list[object] = []
    pending = [
        redis.send((b"APPEND", b"a", b"%d" % digit), notify=lambda pending: answered.append(pending.reply))
        for digit in range(5)
    ]
    await pending[-1].wait()

    assert [1, 2, 3, 4, 5] == answered
    assert b"01234" == await redis.execute(b"GET", b"a")


async def test_cancelled_commands_do_not_affect_other_replies(redis: RedisConnection) -> None:
    wrong: list[object] = []

    async def ask(number: int) -> None:
        with trio.move_on_after(0.002 * (number % 5)):
            for turn in range(10):
                expected = b"%d-%d" % (number, turn)
                if await redis.execute(b"ECHO", expected) != expected:
                    wrong.append(expected)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, number)

    assert ([], b"after") == (wrong, await redis.execute(b"ECHO", b"after"))


async def test_errors_inside_scripts_have_the_class_of_the_command(redis: RedisConnection) -> None:
    fill = Script(b"return redis.call('SET', KEYS[1], ARGV[1])")
    await redis.execute(b"CONFIG", b"SET", b"maxmemory", b"1")
    try:
        with pytest.raises(redis_errors.OutOfMemoryError) as raised:
            await run(redis, fill, [b"a"], [b"value"])
    finally:
        await redis.execute(b"CONFIG", b"SET", b"maxmemory", b"0")

    assert is_temporary(raised.value)


# --- Scripts -------------------------------------------------------------------------------------------------


async def test_scripts_survive_a_script_flush(redis: RedisConnection) -> None:
    before = await run(redis, ECHO, [], [b"before"])
    await redis.execute(b"SCRIPT", b"FLUSH")

    assert (b"before", b"after") == (before, await run(redis, ECHO, [], [b"after"]))


async def test_missing_script_raises_no_script_error(redis: RedisConnection) -> None:
    with pytest.raises(redis_errors.NoScriptError):
        await redis.execute(*INCREMENT.command([b"a"], [1]))

    assert 0 == await redis.execute(b"EXISTS", b"a")


async def test_script_calls_are_pipelined(redis: RedisConnection) -> None:
    await run(redis, ECHO, [], [b"known"])
    calls = [INCREMENT.command([b"a"], [1]), ECHO.command([], [b"x"]), INCREMENT.command([b"b"], [5])]
    replies = await redis.send_all(calls, scripts={ECHO, INCREMENT}).wait()

    assert [1, b"x", 5] == replies
    assert [2, b"x", 10] == await redis.send_all(calls, scripts={ECHO, INCREMENT}).wait()


async def test_notified_script_calls_survive_a_script_flush(redis: RedisConnection) -> None:
    replies: list[object] = []
    for _ in range(2):
        await redis.execute(b"SCRIPT", b"FLUSH")
        done = trio.Event()

        def answered(pending: Pending, done: trio.Event = done) -> None:
            replies.append(pending.reply)
            done.set()

        redis.send(INCREMENT.command([b"a"], [1]), notify=answered, scripts=(INCREMENT,))
        await done.wait()

    assert [1, 2] == replies


# --- Getting in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols_return_the_same_replies(redis_server: RedisServer, protocol: int) -> None:
    async with open_connection(f"{redis_server.url}?protocol={protocol}", name="test") as redis:
        await redis.execute(b"HSET", b"h", b"a", 1, b"b", 2)
        stored = await redis.execute(b"HGETALL", b"h")
        name = await redis.execute(b"CLIENT", b"GETNAME")

    assert type(stored) is {2: list, 3: dict}[protocol]
    assert {b"a": b"1", b"b": b"2"} == as_map(stored)
    assert b"korvet:test" == name


@pytest.mark.parametrize("protocol", [2, 3])
async def test_connection_with_password_user_and_database(new_server: StartServer, protocol: int) -> None:
    server = new_server(tcp=True, options={"requirepass": "top-secret"})
    with server.client() as admin:
        admin.acl_setuser("app", enabled=True, passwords=["+pass"], commands=["+get", "+set"], keys=["app:*"])
    port = server.port

    options = f"protocol={protocol}"
    async with open_connection(f"redis://:top-secret@127.0.0.1:{port}/2?{options}") as redis:
        await redis.execute(b"SET", b"app:a", b"in two")
    # This user may neither SELECT, PING nor say its name.
    async with open_connection(f"redis://app:pass@127.0.0.1:{port}?{options}") as redis:
        await redis.execute(b"SET", b"app:a", b"in zero")
        with pytest.raises(redis_errors.NoPermissionError):
            await redis.execute(b"GET", b"other")
    async with open_connection(f"redis://:top-secret@127.0.0.1:{port}/2?{options}") as redis:
        found = await redis.execute(b"GET", b"app:a")

    assert b"in two" == found


@pytest.mark.parametrize(
    "user,query,complaint",
    [
        (":wrong@", "", "WRONGPASS"),
        ("nobody:secret@", "", "WRONGPASS"),
        ("", "", "NOAUTH"),
        (":secret@", "&db=99", "DB index is out of range"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 3])
async def test_permanent_refusals_are_raised_immediately(
    new_server: StartServer, user: str, query: str, complaint: str, protocol: int
) -> None:
    server = new_server(options={"requirepass": "secret"})
    with trio.fail_after(10), pytest.raises(redis_errors.RedisError, match=complaint):
        async with open_connection(f"unix://{user}{server.socket}?protocol={protocol}{query}"):
            pass


@asynccontextmanager
async def tls_proxy(server: RedisServer, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Terminate TLS on a separate port, which is yielded, because the servers of both wheels do not support TLS."""

    async def relay(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream) -> None:
        try:
            while data := await source.receive_some(65536):
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def serve(client: trio.SocketStream) -> None:
        stream = trio.SSLStream(client, context, server_side=True, https_compatible=True)
        async with (
            await trio.open_unix_socket(str(server.socket)) as upstream,
            trio.open_nursery() as nursery,
        ):
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError:
                return
            nursery.start_soon(relay, stream, upstream)
            await relay(upstream, stream)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield port
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def server_context(authority: trustme.CA, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


async def test_tls_transfers_megabytes_in_both_directions(
    redis_server: RedisServer, authority: trustme.CA, ca_file: Path
) -> None:
    value = bytes(range(256)) * 8_000
    async with (
        tls_proxy(redis_server, server_context(authority)) as port,
        open_connection(f"rediss://127.0.0.1:{port}?ssl_ca_certs={ca_file}") as redis,
    ):
        replies = await redis.pipeline([(b"SET", b"a", memoryview(value)), (b"GET", b"a")])

    assert [b"OK", value] == replies


async def test_tls_refuses_a_certificate_of_an_unknown_authority(
    redis_server: RedisServer, authority: trustme.CA, ca_file: Path
) -> None:
    async with tls_proxy(redis_server, server_context(trustme.CA())) as port:
        with trio.fail_after(10), pytest.raises(ssl.SSLCertVerificationError):
            async with open_connection(f"rediss://127.0.0.1:{port}?ssl_ca_certs={ca_file}"):
                pass


async def test_tls_refuses_a_certificate_for_another_host_unless_disabled(
    redis_server: RedisServer, authority: trustme.CA, ca_file: Path
) -> None:
    async with tls_proxy(redis_server, server_context(authority, "other.example")) as port:
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={ca_file}"
        with trio.fail_after(10), pytest.raises(ssl.SSLCertVerificationError):
            async with open_connection(url):
                pass
        for option in ("ssl_check_hostname=false", "ssl_cert_reqs=none"):
            async with open_connection(f"{url}&{option}") as redis:
                assert b"PONG" == await redis.execute(b"PING")


async def test_tls_presents_a_client_certificate(
    redis_server: RedisServer, authority: trustme.CA, ca_file: Path
) -> None:
    context = server_context(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    own = ca_file.parent / "client.pem"
    authority.issue_cert("korvet").private_key_and_cert_chain_pem.write_to_path(own)
    async with (
        tls_proxy(redis_server, context) as port,
        open_connection(f"rediss://127.0.0.1:{port}?ssl_ca_certs={ca_file}&ssl_certfile={own}") as redis,
    ):
        assert b"PONG" == await redis.execute(b"PING")


# --- Going away, and coming back -----------------------------------------------------------------------------


async def kill_with_a_pending_command(server: RedisServer, redis: RedisConnection) -> Pending:
    """Kill the server after a command was written that it does not execute any more."""
    server.pause()
    pending = redis.send((b"INCR", b"count"))
    await trio.testing.wait_all_tasks_blocked()
    server.kill()
    return pending


async def test_killed_server_fails_pending_commands_and_is_reconnected(durable_server: RedisServer) -> None:
    async with open_connection(durable_server.url) as redis:
        await redis.execute(b"SET", b"a", b"kept")
        pending = await kill_with_a_pending_command(durable_server, redis)
        with trio.fail_after(10), pytest.raises(ConnectionLost, match="outcome unknown"):
            await pending.wait()
        with pytest.raises(NotConnected, match=r"no connection to unix://"):
            redis.send((b"GET", b"a"))
        durable_server.start()
        with trio.fail_after(10):
            await redis.wait_connected()

            assert b"kept" == await redis.execute(b"GET", b"a")


async def test_repeatable_commands_survive_a_kill(durable_server: RedisServer) -> None:
    found: list[tuple[int, object]] = []

    async with open_connection(durable_server.url) as redis:

        async def ask(number: int) -> None:
            replies = await redis.pipeline([(b"ECHO", number), (b"PING",)], repeatable=True)
            found.append((int(cast(bytes, replies[0])), replies[1]))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                pending = await kill_with_a_pending_command(durable_server, redis)
                for number in range(10):
                    nursery.start_soon(ask, number)
                with pytest.raises(ConnectionLost):
                    await pending.wait()
                durable_server.start()

    assert [(number, b"PONG") for number in range(10)] == sorted(found)


async def test_scripts_survive_a_restart(durable_server: RedisServer) -> None:
    async with open_connection(durable_server.url) as redis:
        await run(redis, INCREMENT, [b"a"], [1])
        for _ in range(2):
            durable_server.kill()
            durable_server.start()
            with trio.fail_after(10):
                await run(redis, INCREMENT, [b"a"], [1], repeatable=True)

        assert b"3" == await redis.execute(b"GET", b"a", repeatable=True)


async def test_connection_waits_for_a_server_that_is_not_running(
    new_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server(options={"requirepass": "secret"})
    server.kill()
    caplog.set_level(logging.INFO)
    missed = trio.Event()
    caplog.handler.addFilter(lambda record: missed.set() or True)

    async def start_when_missed() -> None:
        await missed.wait()
        server.start()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_when_missed)
            async with open_connection(f"unix://:secret@{server.socket}") as redis:
                assert b"PONG" == await redis.execute(b"PING")

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 == len(warnings)
    assert warnings[0].startswith(f"cannot reach Redis at unix://{server.socket}: ")
    assert "secret" not in caplog.text
    assert f"connected to Redis at unix://{server.socket}" in caplog.text


async def test_password_that_changes_is_read_for_the_next_connection(new_server: StartServer) -> None:
    server = new_server()
    passwords = ["old"]

    def url() -> str:
        return f"unix://app:{passwords[-1]}@{server.socket}"

    with server.client() as admin:
        admin.acl_setuser("app", enabled=True, passwords=["+old"], commands=["+@all"], keys=["*"])
        address = evolve(parse_address(url()), reread=url)
        async with open_connection(address) as redis:
            first = await redis.execute(b"CLIENT", b"ID")
            admin.acl_setuser("app", enabled=True, passwords=["+new"])
            passwords.append("new")
            admin.acl_setuser("app", enabled=True, passwords=["-old"])
            admin.client_kill_filter(_id=str(first))
            with trio.fail_after(20):
                second = await redis.execute(b"CLIENT", b"ID", repeatable=True)

    assert first != second


async def test_connection_waits_for_a_loading_server() -> None:
    greetings: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        greetings.append(bytes(await stream.receive_some(4096)))
        if len(greetings) < 3:
            await stream.send_all(b"-LOADING Redis is loading the dataset in memory\r\n+OK\r\n:7\r\n+\r\n")
        else:
            await stream.send_all(b"+PONG\r\n+OK\r\n:7\r\n+run_id:1\r\n")
            await stream.receive_some(4096)
            await stream.send_all(b"+served\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        with trio.fail_after(10):
            async with open_connection(f"redis://127.0.0.1:{port}") as redis:
                assert b"served" == await redis.execute(b"GET", b"a")
        nursery.cancel_scope.cancel()

    assert 3 == len(greetings)


async def test_unresponsive_server_fails_commands_in_time_and_is_reconnected(
    redis_server: RedisServer,
) -> None:
    url = f"{redis_server.url}?socket_timeout=0.2&socket_connect_timeout=0.2"
    async with open_connection(url) as redis:
        redis_server.pause()
        try:
            with trio.fail_after(5), pytest.raises(ConnectionLost, match="does not answer"):
                await redis.execute(b"PING")
        finally:
            redis_server.resume()
        with trio.fail_after(10):
            assert b"PONG" == await redis.execute(b"PING", repeatable=True)


async def test_blocking_command_may_exceed_the_socket_timeout(redis_server: RedisServer) -> None:
    async with open_connection(f"{redis_server.url}?socket_timeout=0.1") as redis:
        assert await redis.execute(b"BLPOP", b"nothing", 0.5, limit_s=5.0) is None


async def test_deadline_of_the_caller_ends_without_a_connection(redis_server: RedisServer) -> None:
    async with open_connection(redis_server.url) as redis:
        redis_server.pause()
        with trio.move_on_after(0.05) as limit:
            await redis.execute(b"INCR", b"a")
        redis_server.resume()

        assert limit.cancelled_caught
        assert b"1" == await redis.execute(b"GET", b"a")


async def test_connection_to_a_demoted_primary_is_replaced(
    replica_pair: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "READ_ONLY_AFTER_S", 0.0)
    _primary, replica = replica_pair
    async with open_connection(replica.tcp_url) as redis:
        first = await redis.execute(b"CLIENT", b"ID")
        with pytest.raises(redis_errors.ReadOnlyError):
            await redis.execute(b"SET", b"a", b"1")
        with trio.fail_after(10):
            second = await redis.execute(b"CLIENT", b"ID", repeatable=True)

    assert first != second


async def test_end_of_the_block_fails_pending_commands(redis_server: RedisServer) -> None:
    failed: list[Exception] = []

    async def ask(redis: RedisConnection) -> None:
        try:
            await redis.execute(b"BLPOP", b"nothing", 0, limit_s=60.0)
        except ConnectionLost as error:
            failed.append(error)

    async with trio.open_nursery() as nursery, open_connection(redis_server.url) as redis:
        nursery.start_soon(ask, redis)
        await trio.testing.wait_all_tasks_blocked()

    assert ["lost the connection, outcome unknown: it was closed"] == [str(error) for error in failed]
    with pytest.raises(NotConnected):
        await redis.execute(b"PING", repeatable=True)


async def test_exception_of_the_block_is_raised_unwrapped(redis_server: RedisServer) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_connection(redis_server.url):
            raise KeyError("mine")
