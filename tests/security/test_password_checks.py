from __future__ import annotations

from typing import Any

import pytest
import trio

from korvet.security import password_checks
from korvet.security.password_checks import PasswordChecks
from korvet.security.scram import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    is_password_of,
    salted_password,
)

SHA = ScramMechanism.SCRAM_SHA_256


def credential(password: str) -> ScramCredential:
    return credential_of(SHA, salted_password(SHA, password, b"salt", 4096), b"salt", 4096)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of passwords that were hashed."""
    passwords: list[str] = []
    real = is_password_of

    def counted(mechanism: ScramMechanism, known: ScramCredential, password: str) -> bool:
        passwords.append(password)
        return real(mechanism, known, password)

    monkeypatch.setattr(password_checks, "is_password_of", counted)
    return passwords


async def test_right_password_is_hashed_once_in_five_minutes(
    hashed: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    checks, known = PasswordChecks(), credential("right")
    for _ in range(3):
        assert await checks.check("a", SHA, known, "right")
        assert not await checks.check("a", SHA, known, "wrong")
    assert ["right", "wrong", "wrong", "wrong"] == hashed
    await trio.sleep(301)
    assert await checks.check("a", SHA, known, "right")

    assert ["right", "right"] == [each for each in hashed if each == "right"]
    assert "right" not in repr(checks)


async def test_changed_password_is_effective_immediately() -> None:
    checks = PasswordChecks()
    assert await checks.check("a", SHA, credential("old"), "old")

    assert not await checks.check("a", SHA, credential("new"), "old")


async def test_right_password_of_another_address_does_not_wait_for_many_guesses() -> None:
    checks, known = PasswordChecks(), credential("right")
    guesses = 300
    guessed = 0

    async def guess() -> None:
        nonlocal guessed
        await checks.check("bad", SHA, known, "wrong")
        guessed += 1

    async with trio.open_nursery() as nursery:
        for _ in range(guesses):
            nursery.start_soon(guess)
        await trio.testing.wait_all_tasks_blocked()
        assert await checks.check("good", SHA, known, "right")
        assert guessed < 20
        before = guessed
        assert await checks.check("bad", SHA, known, "right")
        assert guessed == before
        nursery.cancel_scope.cancel()

    assert {} == checks._turns


async def test_remembered_passwords_are_bounded(monkeypatch: pytest.MonkeyPatch, hashed: list[str]) -> None:
    monkeypatch.setattr(password_checks, "MOST_REMEMBERED", 2)
    checks = PasswordChecks()
    pairs: list[tuple[Any, str]] = [(credential(word), word) for word in ("one", "two", "three")]
    for known, word in [*pairs, *pairs[1:], pairs[0]]:
        assert await checks.check("a", SHA, known, word)

    assert ["one", "two", "three", "one"] == hashed
