from __future__ import annotations

import pytest

from korvet.client.scram import ScramClient
from korvet.protocol.errors import SaslAuthenticationFailed

# The conversation in RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client(username: str = "user") -> ScramClient:
    return ScramClient("SCRAM-SHA-256", username, "pencil", NONCE)


def test_messages_equal_those_of_the_rfc() -> None:
    scram = client()

    assert b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO" == scram.first()
    assert CLIENT_FINAL == scram.final(SERVER_FIRST)
    scram.verify(SERVER_FINAL)


def test_every_conversation_has_a_new_nonce() -> None:
    assert ScramClient("SCRAM-SHA-512", "u", "p").first() != ScramClient("SCRAM-SHA-512", "u", "p").first()


def test_user_name_may_contain_separators() -> None:
    assert client("a=b,c").first().startswith(b"n,,n=a=3Db=2Cc,r=")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"r=another,s=AAAA,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=many",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=0",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=999999999",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=!,i=4096",
    ],
)
def test_malformed_server_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="SCRAM failed: the broker"):
        client().final(message)


@pytest.mark.parametrize(
    "message, said",
    [
        (b"v=AAAA", "the broker's signature does not match the password"),
        (b"", "the broker's signature does not match the password"),
        (b"e=other-error", "the broker says other-error"),
    ],
)
def test_server_without_the_password_is_refused(message: bytes, said: str) -> None:
    scram = client()
    scram.final(SERVER_FIRST)

    with pytest.raises(SaslAuthenticationFailed, match=said):
        scram.verify(message)
