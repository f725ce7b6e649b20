from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from korvet.config import ConfigError
from korvet.security.password_checks import Check, checked_in_thread
from korvet.security.password_file import PasswordFile, read_passwords
from korvet.security.scram import ScramMechanism, credential_of, salted_password
from korvet.security.users import Users
from korvet.storage.memory import MemoryStorage

NOT_COMPLETE = "a line has no name or no password; accepted: lines NAME: PASSWORD"
SHA_256 = ScramMechanism.SCRAM_SHA_256


@pytest.fixture
async def users() -> Users:
    """The users alice and bob in a store, with the password stored."""
    users = Users(MemoryStorage())
    salted = salted_password(SHA_256, "stored", b"salt", 4096)
    for name in ("alice", "bob"):
        await users.put(name, SHA_256, credential_of(SHA_256, salted, b"salt", 4096))
    return users


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users.properties"
    path.write_text("# users\nalice: hush\nc\\:d\\ ü = grün, =\n", encoding="utf-8")
    return path


async def test_users_of_the_file_precede_those_of_the_store(path: Path, users: Users) -> None:
    passwords = PasswordFile.of(str(path), users)
    accepted = {
        pair
        for pair in [
            *((name, word) for name in ("alice", "bob", "eve") for word in ("hush", "stored", "", "hus")),
            ("c:d ü", "grün, ="),
        ]
        if await passwords.has_password(*pair)
    }

    assert {("alice", "hush"), ("bob", "stored"), ("c:d ü", "grün, =")} == accepted


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"alice: hush\nbob:\n", NOT_COMPLETE),
        (b"hush\n", NOT_COMPLETE),
        (b": hush\n", NOT_COMPLETE),
        (b"alice: hush\xff\n", "it is not UTF-8 text"),
        (b"alice: hush\\ud800\n", "it is not UTF-8 text"),
        (b"\\ud800: hush\n", "it is not UTF-8 text"),
    ],
)
def test_unusable_file_is_refused_without_quoting_it(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_passwords(str(path))

    assert f"$.sasl.plain.users.file: {path}: {reason}" == str(raised.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "no", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as raised:
            read_passwords(str(path))
        assert f"$.sasl.plain.users.file: {path}: {reason}" == str(raised.value)


async def test_changed_passwords_are_used_and_an_unusable_file_is_logged_once(
    tmp_path: Path, users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "users.properties"
    path.write_text("alice hush\n")
    passwords = PasswordFile.of(str(path), users)
    await passwords.refresh()
    path.write_text("alice hush2\nhush3\n")
    await passwords.refresh()
    await passwords.refresh()
    assert await passwords.has_password("alice", "hush")
    path.write_text("alice hush2\n")
    await passwords.refresh()
    assert await passwords.has_password("alice", "hush2")
    assert not await passwords.has_password("alice", "hush")
    path.unlink()
    await passwords.refresh()

    assert await passwords.has_password("alice", "hush2")
    assert [
        f"$.sasl.plain.users.file: {path}: {NOT_COMPLETE}; PLAIN uses the previous passwords",
        f"PLAIN uses the new passwords in {path}",
        f"$.sasl.plain.users.file: {path}: No such file or directory; PLAIN uses the previous passwords",
    ] == [record.getMessage() for record in caplog.records]
    assert "hush" not in caplog.text + repr(passwords)


async def test_file_is_read_again_at_intervals(
    path: Path, users: Users, autojump_clock: trio.testing.MockClock
) -> None:
    refreshed: list[float] = []

    class Counted(PasswordFile):
        async def refresh(self) -> None:
            refreshed.append(trio.current_time())

    with trio.move_on_after(16):
        await Counted.of(str(path), users).run()

    assert [5, 10, 15] == refreshed


async def test_user_in_the_file_takes_as_long_as_others(path: Path) -> None:
    class Counting(Users):
        asked: int = 0

        async def has_password(self, username: str, password: str, check: Check = checked_in_thread) -> bool:
            self.asked += 1
            return False

    users = Counting(MemoryStorage())
    passwords = PasswordFile.of(str(path), users)
    for username in ("alice", "bob"):
        await passwords.has_password(username, "wrong")

    assert 2 == users.asked
