from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.protocol.errors import SaslAuthenticationFailed
from korvet.security.oauthbearer import InvalidToken, OAuthBearerServer, Token
from korvet.security.sasl import Rejected

FIRST = b"n,,\x01auth=Bearer good\x01\x01"


async def verify(text: str) -> Token:
    if text != "good":
        raise InvalidToken("it is expired")
    return Token("alice", 5000)


def server() -> OAuthBearerServer:
    return OAuthBearerServer(verify)


@pytest.mark.parametrize(
    "message",
    [
        FIRST,
        b"n,a=alice,\x01auth=Bearer good\x01\x01",
        # RFC 7628, section 4.1, has host and port.
        b"n,,\x01host=server.example.com\x01port=143\x01auth=bearer  good\x01\x01",
    ],
)
async def test_accepted_token_authenticates_its_subject(message: bytes) -> None:
    sasl = server()

    assert b"" == await sasl.evaluate(message)
    assert sasl.is_complete
    assert ("alice", 5000) == (sasl.username, sasl.expires_ms)


async def test_invalid_token_is_answered_with_json_and_then_fails() -> None:
    sasl = server()

    assert b'{"status":"invalid_token"}' == await sasl.evaluate(FIRST.replace(b"good", b"bad"))
    assert not sasl.is_complete
    with pytest.raises(SaslAuthenticationFailed) as raised:
        await sasl.evaluate(b"\x01")
    assert '{"status":"invalid_token"}' == raised.value.message


async def test_second_token_is_refused() -> None:
    sasl = server()
    await sasl.evaluate(FIRST.replace(b"good", b"bad"))
    with pytest.raises(Rejected, match="it is expired"):
        await sasl.evaluate(FIRST)


async def test_other_authorization_id_is_refused() -> None:
    sasl = server()
    with pytest.raises(SaslAuthenticationFailed, match=r"authorization id \(admin\) that is different"):
        await sasl.evaluate(b"n,a=admin,\x01auth=Bearer good\x01\x01")

    assert not sasl.is_complete


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\xff",
        b"n,,\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Bearer go od\x01\x01",
        b"n,,\x01auth=Bearer good\x01\x01\x01",
        b"n,,auth=Bearer good\x01\x01",
    ],
)
async def test_malformed_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(Rejected):
        await server().evaluate(message)


@given(st.integers(min_value=0, max_value=30), st.integers(min_value=0, max_value=3), st.binary(max_size=3))
@settings(max_examples=300)
def test_mutated_messages_do_not_crash(position: int, removed: int, added: bytes) -> None:
    mutated = FIRST[:position] + added + FIRST[position + removed :]
    sasl = server()
    try:
        trio.run(sasl.evaluate, mutated)
    except (Rejected, SaslAuthenticationFailed):
        assert not sasl.is_complete
    else:
        assert sasl.is_complete == (sasl.username == "alice")
