from __future__ import annotations

import pytest

from korvet.protocol.errors import SaslAuthenticationFailed
from korvet.security.plain import PlainServer


async def has_password(username: str, password: str) -> bool:
    return ("alice", "grün,=") == (username, password)


@pytest.mark.parametrize("identity", ["", "alice"])
async def test_correct_password_authenticates(identity: str) -> None:
    server = PlainServer(has_password)

    assert b"" == await server.evaluate(f"{identity}\0alice\0grün,=".encode())
    assert server.is_complete
    assert "alice" == server.username


@pytest.mark.parametrize(
    "message, error",
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0bob\0gr\xc3\xbcn,=", "Authentication failed: Invalid username or password"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0gr\xc3\xbcn,=",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0x", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0x\0y\0z", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\xff\0\xff", "Authentication failed: Invalid username or password"),
    ],
)
async def test_invalid_messages_fail_with_the_errors_of_kafka(message: bytes, error: str) -> None:
    server = PlainServer(has_password)
    with pytest.raises(SaslAuthenticationFailed) as raised:
        await server.evaluate(message)

    assert error == raised.value.message
    assert not server.is_complete
