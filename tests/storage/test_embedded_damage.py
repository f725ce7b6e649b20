"""Embedded storage whose files were damaged or lost: nothing is served as if it were whole."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
import trio

from korvet.storage.embedded import disk, server
from korvet.storage.embedded import folder as folders
from korvet.storage.embedded.checksums import verify
from korvet.storage.embedded.repair import cut, examine
from korvet.storage.embedded.server import EmbeddedServer, embedded_server
from korvet.storage.interface import StorageUsageError
from tests.storage.test_embedded import client, is_running, kill_a_broker, mode_of

pytestmark = pytest.mark.servers

KEYS = 100
LIMIT_S = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="korvet-") as path:
        yield Path(path, "data")


async def fill(folder: Path) -> None:
    """Store keys in the snapshot and behind it."""
    async with embedded_server(folder) as server:
        with client(server) as plain:
            for index in range(KEYS):
                plain.set(f"snapshot-{index}", "x" * 20)
            await until(rewrite(plain))
            for index in range(KEYS):
                plain.set(f"after-{index}", "x" * 20)


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; no event reports what the server or the disk does."""
    with trio.fail_after(LIMIT_S):
        while not condition():  # noqa: ASYNC110  see above
            await trio.sleep(0.01)


def refuses(plain: redis.Redis) -> bool:
    """Return True if the server refuses a write, as one that is full."""
    with suppress(redis.exceptions.ConnectionError):
        try:
            plain.set("b", 1)
        except redis.exceptions.OutOfMemoryError:
            return True
    return False


def rewrite(plain: redis.Redis) -> Callable[[], bool]:
    """Begin to rewrite the file, and return a function that returns True once that has ended."""
    plain.bgrewriteaof()
    return lambda: not plain.info("persistence")["aof_rewrite_in_progress"]


async def stored(folder: Path) -> int:
    async with embedded_server(folder) as server:
        with client(server) as plain:
            return int(plain.dbsize())


def only(folder: Path, pattern: str) -> Path:
    (found,) = (folder / "appendonlydir").glob(pattern)
    return found


# --- A refused start -----------------------------------------------------------------------------------------


async def test_refused_start_leaves_a_living_server_reachable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = kill_a_broker(folder)
    os.kill(orphan, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(server, "SILENCE_LIMIT_S", 0.2)
        patch.setattr(server, "ANSWER_LIMIT_S", 0.1)
        with pytest.raises(
            StorageUsageError, match=rf"a server \(process {orphan}\) holds server.lock and does"
        ):
            async with embedded_server(folder):
                pass
    os.kill(orphan, signal.SIGCONT)
    async with embedded_server(folder) as adopted:
        assert orphan == adopted.pid


# --- Missing files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["appendonlydir", "appendonlydir/appendonly.aof.manifest"])
async def test_start_without_the_data_is_refused(folder: Path, missing: str) -> None:
    await fill(folder)
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(
        StorageUsageError, match=r"held data of Valkey 9\.\S+, but \S+manifest is missing; restore"
    ):
        async with embedded_server(folder):
            pass
    (folder / "server.json").unlink()
    if missing == "appendonlydir":
        assert 0 == await stored(folder)


async def test_first_start_that_failed_is_repeated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: EmbeddedServer, command: list[str]) -> None:
        raise StorageUsageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedServer, "_start_process", fail)
        with pytest.raises(StorageUsageError, match="no"):
            async with embedded_server(folder):
                pass

    assert 0 == await stored(folder)


@pytest.mark.parametrize("what", [".", "appendonlydir"])
async def test_deleted_folder_is_noticed_within_seconds(
    folder: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded_server(folder) as server:
        plain = client(server)
        plain.set("a", 1)
        shutil.rmtree(folder / what)
        await until(lambda: "was deleted" in caplog.text)
        await until(lambda: refuses(plain))
        kept = plain.get("a")
        plain.close()

    assert b"1" == kept


# --- A full disk ---------------------------------------------------------------------------------------------


async def test_start_on_a_full_disk_names_path_and_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FREE_BYTES_TO_START", 1 << 60)
    with pytest.raises(StorageUsageError, match=rf"embedded:{folder} .* bytes left; make room on it"):
        async with embedded_server(folder):
            pass


async def test_writes_are_refused_before_the_disk_is_full(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded_server(folder) as server:
        with client(server) as plain:
            plain.set("a", 1)
            with monkeypatch.context() as patch:
                patch.setattr(disk, "RESERVE_BYTES", 1 << 60)
                patch.setattr(disk, "RESERVE_PART", 1)
                await until(lambda: refuses(plain))
                read, deleted = plain.get("a"), plain.delete("a")
                os.kill(server.pid, signal.SIGKILL)
                await until(lambda: refuses(plain))  # the next one
            await until(lambda: plain.config_get("maxmemory")["maxmemory"] == "0")
            plain.set("b", 1)

    assert (b"1", 1) == (read, deleted)
    assert 1 == caplog.text.count("make room on it; writes are refused")
    assert "there is room again" in caplog.text


# --- Damaged files -------------------------------------------------------------------------------------------


async def test_zero_bytes_behind_the_file_are_found_and_cut(folder: Path) -> None:
    await fill(folder)
    path = only(folder, "*.incr.aof")
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(5000))
    with pytest.raises(
        StorageUsageError, match=rf"append-only file is damaged; korvet repair {folder} shows where"
    ):
        async with embedded_server(folder):
            pass
    found = examine(folder)

    assert found.damage is not None
    assert found.can_cut
    assert (path, size, size + 5000) == (found.damage.path, found.damage.intact, found.damage.size)
    assert "zero bytes, as a power loss leaves them" == found.damage.content()
    copy = cut(folder, found.damage)
    assert (size + 5000, size) == (copy.stat().st_size, path.stat().st_size)
    assert examine(folder).damage is None
    assert 2 * KEYS == await stored(folder)


async def test_damaged_snapshot_is_refused_and_not_cut(folder: Path) -> None:
    await fill(folder)
    path = only(folder, "*.base.rdb")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageUsageError, match=r"no server starts in .* is damaged; korvet repair"):
        async with embedded_server(folder):
            pass
    found = examine(folder)

    assert found.damage is not None
    assert (path, False) == (found.damage.path, found.can_cut)


async def test_file_that_ends_in_a_command_is_cut_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(folder)
    path = only(folder, "*.incr.aof")
    os.truncate(path, path.stat().st_size - 3)
    caplog.set_level(logging.WARNING)
    count = await stored(folder)

    assert 2 * KEYS - 1 == count
    assert "ended in an incomplete command" in caplog.text


@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
async def test_flipped_bit_is_refused_and_cut(folder: Path, part: float) -> None:
    await fill(folder)
    path = only(folder, "*.incr.aof")
    content = bytearray(path.read_bytes())
    intact = bytes(content)
    content[int(part * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        StorageUsageError, match=r"incr.aof has changed between the bytes 0 and .* see korvet repair"
    ):
        async with embedded_server(folder):
            pass
    found = examine(folder)

    assert found.damage is not None
    assert found.can_cut
    cut(folder, found.damage)
    assert KEYS == await stored(folder)  # those of the snapshot
    path.write_bytes(intact)


async def test_checksums_follow_rewrites_and_adoption(folder: Path) -> None:
    for _ in range(3):
        await fill(folder)
    orphan = kill_a_broker(folder)
    async with embedded_server(folder) as server:
        assert orphan == server.pid
        with client(server) as plain:
            plain.set("adopted", 1)
    sums = sorted(path.name for path in (folder / "appendonlydir").glob("*.crc"))

    assert [f"{only(folder, '*.incr.aof').name}.crc"] == sums
    assert 0 == verify(folder)
    assert 2 * KEYS + 2 == await stored(folder)


async def test_file_that_is_shorter_than_it_was_starts_with_an_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(folder)
    path = only(folder, "*.incr.aof")
    whole = path.read_bytes()
    kept = whole[: whole.rindex(b"*3\r\n")]  # whole commands, so that the server notices nothing
    path.write_bytes(kept)
    count = await stored(folder)

    assert 2 * KEYS - 1 == count
    assert f"the last {len(whole) - len(kept)} bytes of the append-only file are gone" in caplog.text
    assert 0 == verify(folder)


async def test_checksums_that_a_power_loss_has_damaged_are_ignored(folder: Path) -> None:
    await fill(folder)
    path = only(folder, "*.crc")
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))

    assert 2 * KEYS == await stored(folder)
    assert 0 == verify(folder)


async def test_folder_of_a_running_server_is_not_examined(folder: Path) -> None:
    async with embedded_server(folder):
        with pytest.raises(StorageUsageError, match="is in use by another broker"):
            examine(folder)
    orphan = kill_a_broker(folder)
    with pytest.raises(StorageUsageError, match="is in use by a server"):
        examine(folder)
    async with embedded_server(folder):
        pass

    assert not is_running(orphan)


def open_to_others(folder: Path) -> None:
    """Create the folder, or let other users read what is in it, as earlier versions of korvet did."""
    folder.mkdir(mode=0o755, exist_ok=True)
    for path in (folder / "appendonlydir", *(folder / "appendonlydir").glob("*"), *folder.glob("dump.rdb")):
        path.chmod(0o755) if path.exists() else None


def modes_in(folder: Path) -> dict[Path, int]:
    """Return the mode of each file but server.json, which has no data."""
    return {path: mode_of(path) for path in folder.rglob("*") if path.suffix != ".json"}


# --- Other users ---------------------------------------------------------------------------------------------


async def test_data_in_an_open_folder_is_closed_to_other_users(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(0o022)
    try:
        open_to_others(folder)
        async with embedded_server(folder) as server:
            with client(server) as plain:
                plain.set("a", 1)
                await until(rewrite(plain))
                plain.save()
            modes = modes_in(folder)
        open_to_others(folder)
        async with embedded_server(folder):
            closed_again = modes_in(folder)
    finally:
        os.umask(before)

    assert not {path: oct(mode) for path, mode in (*modes.items(), *closed_again.items()) if mode & 0o077}
    assert {"dump.rdb", "server.log", "appendonlydir"} <= {path.name for path in modes}
    assert "has mode 755: other users may list it" in caplog.text
