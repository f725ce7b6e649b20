from __future__ import annotations

import base64
import hashlib
import hmac
from functools import partial
from inspect import iscoroutinefunction

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.client.scram import ScramClient
from korvet.protocol.errors import SaslAuthenticationFailed
from korvet.security.sasl import Rejected
from korvet.security.scram import (
    MECHANISMS,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    is_password_of,
    new_salt,
    salt_of,
    salted_password,
)

# The conversation in RFC 7677, section 3.
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SHA_256 = ScramMechanism.SCRAM_SHA_256


def credential(mechanism: ScramMechanism = SHA_256, password: str = "pencil") -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096)


PENCIL = {mechanism: credential(mechanism) for mechanism in ScramMechanism}


def server(mechanism: ScramMechanism = SHA_256, *names: str) -> ScramServer:
    """Return a server that has the user names, without names the RFC's, with the RFC's password and nonce."""

    async def find(username: str) -> ScramCredential:
        assert username in (names or ("user",)), username
        return PENCIL[mechanism]

    return ScramServer(mechanism, find, SERVER_NONCE)


async def test_exchange_equals_that_of_the_rfc() -> None:
    scram = server()

    assert SERVER_FIRST == await scram.evaluate(CLIENT_FIRST)
    assert not scram.is_complete
    assert SERVER_FINAL == await scram.evaluate(CLIENT_FINAL)
    assert scram.is_complete
    assert "user" == scram.username


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("username", ["user", "a=b,c", "=2C", "grün ª", "x" * 1000])
async def test_client_with_the_correct_password_authenticates(name: str, username: str) -> None:
    client, scram = ScramClient(name, username, "pencil"), server(MECHANISMS[name], username)
    client.verify(await scram.evaluate(client.final(await scram.evaluate(client.first()))))

    assert scram.is_complete
    assert username == scram.username


async def test_repeated_client_nonce_is_accepted() -> None:
    scram = server()
    await scram.evaluate(CLIENT_FIRST)
    without_proof = CLIENT_FINAL.partition(b",p=")[0].replace(b"r=", b"r=" + CLIENT_NONCE.encode())
    signed = b",".join((CLIENT_FIRST[3:], SERVER_FIRST, without_proof))
    client_key = hmac.digest(salted_password(SHA_256, "pencil", SALT, 4096), b"Client Key", "sha256")
    signature = hmac.digest(credential().stored_key, signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    await scram.evaluate(without_proof + b",p=" + base64.b64encode(proof))

    assert scram.is_complete


@pytest.mark.parametrize("name", MECHANISMS)
async def test_client_with_a_wrong_password_is_rejected(name: str) -> None:
    client, scram = ScramClient(name, "user", "Pencil"), server(MECHANISMS[name])
    final = client.final(await scram.evaluate(client.first()))
    with pytest.raises(Rejected, match="the user is unknown or the password is wrong"):
        await scram.evaluate(final)

    assert not scram.is_complete


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"y,,n=user,r=abc",  # refused by Kafka as well
        b"p=tls-unique,,n=user,r=abc",
        b",,n=user,r=abc",
        b"n,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=a=2c,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,tokenauth=TRUE",
        CLIENT_FINAL,
    ],
)
async def test_malformed_first_message_is_rejected(message: bytes) -> None:
    with pytest.raises(Rejected):
        await server().evaluate(message)


@pytest.mark.parametrize(
    "first, final",
    [
        (CLIENT_FIRST, CLIENT_FINAL.replace(b"c=biws", b"c=eSws")),  # y,,
        (CLIENT_FIRST, CLIENT_FINAL.replace(b"c=biws", b"c=")),
        (CLIENT_FIRST, CLIENT_FINAL.replace(b"c=biws", b"c=b")),
        (CLIENT_FIRST.replace(b"n,,", b"n,a=user,"), CLIENT_FINAL),
        (CLIENT_FIRST, CLIENT_FINAL.replace(b"hNlF$k0", b"hNlF$k1")),
        (CLIENT_FIRST, CLIENT_FINAL.replace(SERVER_NONCE.encode(), b"")),
        (CLIENT_FIRST, CLIENT_FINAL.replace(b"p=dHz", b"p=dHx")),
        (CLIENT_FIRST, CLIENT_FINAL[:-4]),
        (CLIENT_FIRST, CLIENT_FINAL[: CLIENT_FINAL.index(b"p=") + 2]),
        (CLIENT_FIRST, CLIENT_FINAL.replace(b",p=", b",ext=1,p=")),
        (CLIENT_FIRST.replace(b"user", b"USER"), CLIENT_FINAL),
        (CLIENT_FIRST, CLIENT_FIRST),
        (CLIENT_FIRST, b""),
    ],
)
async def test_final_message_without_a_valid_proof_is_rejected(first: bytes, final: bytes) -> None:
    scram = server(SHA_256, "user", "USER")
    await scram.evaluate(first)
    with pytest.raises(Rejected):
        await scram.evaluate(final)

    assert not scram.is_complete
    with pytest.raises(Rejected):
        await scram.evaluate(CLIENT_FINAL)


async def test_exchange_cannot_be_replayed() -> None:
    scram = ScramServer(SHA_256, server().credential)
    await scram.evaluate(CLIENT_FIRST)
    with pytest.raises(Rejected):
        await scram.evaluate(CLIENT_FINAL)


async def test_complete_exchange_accepts_no_more_messages() -> None:
    scram = server()
    await scram.evaluate(CLIENT_FIRST)
    await scram.evaluate(CLIENT_FINAL)
    for message in (CLIENT_FIRST, CLIENT_FINAL):
        with pytest.raises(Rejected):
            await scram.evaluate(message)


async def test_other_authorization_id_is_refused_with_the_error_of_kafka() -> None:
    with pytest.raises(SaslAuthenticationFailed, match="an authorization id that is different from username"):
        await server().evaluate(b"n,a=admin,n=user,r=abc")


def test_credentials_are_those_of_kafka() -> None:
    # ScramCredential of Kafka's ScramFormatter for "pencil", and hashlib's own words for it.
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    made = credential()

    assert salted == salted_password(SHA_256, "pencil", SALT, 4096)
    assert base64.b64decode("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=") == made.stored_key
    assert base64.b64decode("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=") == made.server_key
    assert is_password_of(SHA_256, made, "pencil")
    assert not is_password_of(SHA_256, made, "pencil ")


def test_salts_have_the_format_of_kafka_clients() -> None:
    assert b"0" == salt_of(0)
    assert b"10z" == salt_of(36 * 36 + 35)
    assert new_salt() != new_salt()
    assert new_salt().isalnum()


def test_repr_hides_secrets() -> None:
    scram = server()
    trio.run(partial(scram.evaluate, CLIENT_FIRST))

    assert "ScramCredential(iterations=4096)" == repr(credential())
    assert SERVER_NONCE not in repr(scram)
    assert iscoroutinefunction(scram.evaluate)


@given(
    st.sampled_from([CLIENT_FIRST, CLIENT_FINAL]),
    st.integers(min_value=0, max_value=100),
    st.integers(min_value=0, max_value=3),
    st.binary(max_size=3),
)
@settings(max_examples=500)
def test_mutated_messages_neither_authenticate_nor_crash(
    original: bytes, position: int, removed: int, added: bytes
) -> None:
    mutated = original[:position] + added + original[position + removed :]

    async def converse() -> None:
        scram = server(SHA_256, "user")
        scram.credential = PENCIL_FOR_EVERYBODY
        for message in (CLIENT_FIRST, CLIENT_FINAL):
            await scram.evaluate(mutated if message == original else message)
        assert mutated == original

    try:
        trio.run(converse)
    except (Rejected, SaslAuthenticationFailed):
        assert mutated != original


async def PENCIL_FOR_EVERYBODY(_: str) -> ScramCredential:  # noqa: N802
    return PENCIL[SHA_256]
