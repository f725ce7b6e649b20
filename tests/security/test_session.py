"""Sessions: any sequence of messages, and the sessions that a clock ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.protocol.errors import IllegalSaslState, KafkaError, SaslAuthenticationFailed
from korvet.security.oauthbearer import InvalidToken, Token
from korvet.security.password_checks import Check, checked_in_thread
from korvet.security.scram import ScramCredential, ScramMechanism, credential_of
from korvet.security.session import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Sasl, Session, State
from korvet.security.users import Users
from korvet.storage.memory import MemoryStorage

CREDENTIAL = credential_of(ScramMechanism.SCRAM_SHA_256, b"salted", b"salt", 4096)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
MESSAGES = (
    b"",
    b"\x01",
    b"\0alice\0hush",
    b"n,,n=alice,r=abc",
    b"c=biws,r=abc,p=AAAA",
    b"n,,\x01auth=Bearer good\x01\x01",
    b"n,,\x01auth=Bearer bad\x01\x01",
)
FETCH = 1


class Alice(Users):
    """The user alice, with the password hush."""

    async def has_password(self, username: str, password: str, check: Check = checked_in_thread) -> bool:
        return ("alice", "hush") == (username, password)

    async def credential(self, username: str, mechanism: ScramMechanism) -> ScramCredential:
        return CREDENTIAL


class Clock:
    """A clock that a test sets, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def verify(text: str) -> Token:
    if text != "good":
        raise InvalidToken
    return Token("alice", 50_000)


def new_session(clock: Clock, max_reauth_ms: int = 0, enabled: Sequence[str] = MECHANISMS) -> Session:
    sasl = Sasl(
        enabled, Alice(MemoryStorage()), verify, max_reauth_ms,
        clock=clock, wall_clock_ms=lambda: int(clock.now * 1000),
    )  # fmt: skip
    return Session(sasl, "client")


async def log_in(session: Session, mechanism: str = "PLAIN", message: bytes = b"\0alice\0hush") -> int:
    session.handshake(mechanism, 1)
    _, lifetime_ms = await session.authenticate(message)
    return lifetime_ms


@given(
    st.lists(
        st.one_of(st.sampled_from((*MECHANISMS, "GSSAPI")), st.sampled_from(MESSAGES), st.floats(0, 100)),
        max_size=12,
    )
)
@settings(max_examples=300)
def test_requests_are_accepted_only_after_a_valid_message(steps: list[str | bytes | float]) -> None:
    async def converse() -> None:
        clock = Clock()
        session = new_session(clock, 60_000)
        for step in steps:
            try:
                if isinstance(step, str):
                    session.handshake(step, 1)
                elif isinstance(step, bytes):
                    await session.authenticate(step)
                    if session.state is State.AUTHENTICATED:
                        assert step in (MESSAGES[2], MESSAGES[5])
                else:
                    clock.now += step
            except KafkaError:
                pass
            if session.state is State.FAILED:
                return
            assert ("User:alice" == session.principal) == session.is_authenticated
            assert (session.accepted is None) == (session.state is State.AUTHENTICATED)

    trio.run(converse)


async def test_each_state_accepts_its_requests() -> None:
    session = new_session(Clock())
    assert frozenset({SASL_HANDSHAKE, API_VERSIONS}) == session.accepted
    session.versions_listed()
    assert frozenset({SASL_HANDSHAKE}) == session.accepted
    session.handshake("PLAIN", 1)
    assert frozenset({SASL_AUTHENTICATE}) == session.accepted
    await session.authenticate(b"\0alice\0hush")
    assert session.accepted is None
    session.versions_listed()
    assert session.accepted is None


@pytest.mark.parametrize(
    "max_reauth_ms, mechanism, message, expected",
    [
        (0, "PLAIN", MESSAGES[2], 0),
        (20_000, "PLAIN", MESSAGES[2], 20_000),
        (0, "OAUTHBEARER", MESSAGES[5], 50_000),
        (20_000, "OAUTHBEARER", MESSAGES[5], 20_000),
        (60_000, "OAUTHBEARER", MESSAGES[5], 50_000),
    ],
)
async def test_lifetime_is_the_shorter_of_setting_and_token(
    max_reauth_ms: int, mechanism: str, message: bytes, expected: int
) -> None:
    clock = Clock()
    session = new_session(clock, max_reauth_ms)
    assert expected == await log_in(session, mechanism, message)
    clock.now = 21
    assert (expected == 20_000) == session.has_expired(FETCH)
    clock.now = 51
    assert bool(expected) == session.has_expired(FETCH)
    assert not session.has_expired(SASL_HANDSHAKE)


async def test_reauthentication_is_accepted_at_most_once_in_a_second() -> None:
    clock = Clock()
    session = new_session(clock, 60_000)
    await log_in(session)
    await log_in(session)
    clock.now = 0.9
    with pytest.raises(IllegalSaslState):
        session.handshake("PLAIN", 1)
    clock.now = 1.0
    assert 60_000 == await log_in(session)


async def test_failed_authentications_are_logged_within_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    session = new_session(Clock())
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            other = Session(session.sasl, "client")
            with pytest.raises(SaslAuthenticationFailed):
                await log_in(other, message=b"\0alice\0wrong")

    assert 60 == len(caplog.records)


async def test_user_name_in_the_log_is_truncated_and_has_no_line_breaks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    session = new_session(Clock())
    with pytest.raises(KafkaError):
        await log_in(session, message=b"\0" + b"x\n" * 5000 + b"\0hush")

    (line,) = [each.getMessage() for each in caplog.records]
    assert "\n" not in line
    assert len(line) < 400
