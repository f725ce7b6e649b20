"""Clients that attack the authentication of a broker in this process, with conversations chosen by a seed.

Some have TLS around them. A conversation follows SASL up to a message that is truncated, too long, altered, replayed or
out of order, or that has another channel binding or token. It then sends a request that only authenticated clients may
send. The broker has to close the connection without an answer to that request, and to log no error.
"""

from __future__ import annotations

import json
import ssl
import string
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio
from attrs import define, field, frozen
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from korvet.client.scram import ScramClient
from korvet.config import Listener
from korvet.handlers import APIS
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.security.scram import MECHANISMS, credential_of, salted_password
from korvet.security.users import Users
from korvet.server.server import Server
from korvet.storage.memory import MemoryStorage
from tests.certificates import Authority
from tests.talk import Client, connect, seen, serving

USERNAME, PASSWORD = "alice", "hush"
SCRAM = "SCRAM-SHA-256", "SCRAM-SHA-512"
KEY = ECKey.generate_key("P-256", {"kid": "key"})
SETTINGS = {
    "sasl_enabled_mechanisms": ("PLAIN", *SCRAM, "OAUTHBEARER"),
    "connection_failed_authentication_delay_ms": 0,
    "sasl_server_max_receive_size": 4096,
}
LIMIT_S = 60.0
AT_ONCE = 20
METADATA = MetadataRequest(topics=[])
HANDSHAKE_VERSIONS, AUTHENTICATE_VERSIONS = (0, 1), (0, 1, 2)


@asynccontextmanager
async def attacked(protocol: str, folder: Path, limit_s: float) -> AsyncIterator[Target]:
    """Serve a listener with SASL, and its keys and certificates from the folder."""
    authority, keys = Authority(folder), folder / "keys.json"
    keys.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    settings = {**SETTINGS, "sasl_oauthbearer_jwks_endpoint_url": keys.as_uri()}
    has_tls = protocol == "SASL_SSL"
    if has_tls:
        settings["ssl_keystore_location"] = str(authority.broker)
    listeners = (Listener(protocol, "localhost", 0),)
    storage = await storage_with_user()
    async with serving(storage=storage, listeners=listeners, limit_s=limit_s, **settings) as server:
        yield Target(server, authority.context() if has_tls else None)


async def storage_with_user() -> MemoryStorage:
    storage = MemoryStorage()
    for mechanism in MECHANISMS.values():
        salted = salted_password(mechanism, PASSWORD, b"salt", 4096)
        await Users(storage).put(USERNAME, mechanism, credential_of(mechanism, salted, b"salt", 4096))
    return storage


@frozen
class Target:
    """A broker, and what clients need for its TLS, if it has any."""

    server: Server
    tls: ssl.SSLContext | None


class Answered(AssertionError):  # noqa: N818  it says what the broker did
    """The broker answered a request of a client that has not authenticated."""


@frozen
class Recording:
    """The messages of a client that has authenticated."""

    first: bytes
    final: bytes


@define
class Conversation:
    """One attacker's connection."""

    client: Client
    dice: Random
    recordings: dict[str, Recording]
    is_bare: bool = field(default=False, init=False)

    async def handshake(self, mechanism: str) -> None:
        version = self.dice.choice(HANDSHAKE_VERSIONS)
        await self.client.ask(SaslHandshakeRequest(mechanism=mechanism), version)
        self.is_bare = version == 0

    async def exchange(self, message: bytes) -> bytes:
        """Send a message of the mechanism, and return the answer. Raises EOFError if the broker refuses it."""
        if self.is_bare:
            await self.client.send(len(message).to_bytes(4, "big") + message)
            return bytes(await self.client.receive())
        version = self.dice.choice(AUTHENTICATE_VERSIONS)
        response = await self.client.ask(SaslAuthenticateRequest(auth_bytes=message), version)
        if response.error_code:
            raise EOFError
        return bytes(response.auth_bytes)

    async def must_be_refused(self) -> None:
        """Send a request, and read until the broker closes the connection. Raises Answered."""
        frame = self.client.frame_of(METADATA, 12)
        expected = self.client.correlation_id.to_bytes(4, "big")
        await self.client.send(frame)
        while True:
            if bytes(await self.client.receive()).startswith(expected):
                raise Answered

    # --- Attacks ----------------------------------------------------------------------------------------

    async def altered_plain(self) -> None:
        await self.handshake("PLAIN")
        await self.exchange(altered(self.dice, f"\0{USERNAME}\0{PASSWORD}".encode()))

    async def altered_first(self) -> None:
        mechanism, scram = self.scram()
        await self.handshake(mechanism)
        answer = await self.exchange(altered(self.dice, scram.first()))
        await self.exchange(
            scram.final(answer) if answer.startswith(b"r=" + scram.nonce.encode()) else answer
        )

    async def altered_final(self) -> None:
        mechanism, scram = self.scram()
        await self.handshake(mechanism)
        final = scram.final(await self.exchange(scram.first()))
        without_proof, _, proof = final.rpartition(b",p=")
        alteration = self.dice.randrange(4)
        if alteration == 0:
            final = altered(self.dice, without_proof) + b",p=" + proof
        elif alteration == 1:
            final = without_proof + b",p=" + altered(self.dice, proof[:-4]) + proof[-4:]
        elif alteration == 2:
            final = final[: self.dice.randrange(len(final))]
        else:
            final += self.dice.randbytes(self.dice.choice([1, 100, 5000]))
        await self.exchange(final)

    async def replayed(self) -> None:
        mechanism = self.dice.choice(SCRAM)
        await self.handshake(mechanism)
        await self.exchange(self.recordings[mechanism].first)
        await self.exchange(self.recordings[mechanism].final)

    async def channel_binding(self) -> None:
        mechanism, scram = self.scram()
        await self.handshake(mechanism)
        header = self.dice.choice([b"p=tls-unique,,", b"p=tls-exporter,,", b"y,,", b"x,,", b",,"])
        answer = await self.exchange(header + scram.first()[3:])
        await self.exchange(scram.final(answer))

    async def altered_token(self) -> None:
        """Send a token of which a part was replaced, cut off, or signed by another key."""
        await self.handshake("OAUTHBEARER")
        header, claims, signature = token().split(".")
        alteration = self.dice.randrange(5)
        if alteration == 0:
            header = replaced(self.dice, header)
        elif alteration == 1:
            claims = replaced(self.dice, claims)
        elif alteration == 2:
            signature = signature[: self.dice.randrange(len(signature) - 1)]
        elif alteration == 3:
            header, claims, signature = token(ECKey.generate_key("P-256", {"kid": "key"})).split(".")
        else:
            claims += self.dice.choice(["=", "A", "." + signature, "A" * 5000])
        message = f"n,,\1auth=Bearer {header}.{claims}.{signature}\1\1".encode()
        if await self.exchange(message):
            await self.exchange(self.dice.choice([b"\1", b"", message]))

    async def altered_bearer(self) -> None:
        """Alter what surrounds a token that would be refused, too."""
        await self.handshake("OAUTHBEARER")
        text = token(ECKey.generate_key("P-256", {"kid": "key"}))
        message = altered(self.dice, f"n,a={USERNAME},\1auth=Bearer {text}\1traceId=1\1\1".encode())
        if await self.exchange(message):
            await self.exchange(message)

    async def too_early(self) -> None:
        """Send a frame of any API instead of the next message."""
        steps = self.dice.randrange(3)
        if steps > 0:
            await self.handshake("PLAIN" if steps == 1 else SCRAM[0])
        if steps > 1:
            await self.exchange(ScramClient(SCRAM[0], USERNAME, PASSWORD).first())
        key, version = self.dice.choice(list(APIS)), self.dice.randrange(-1, 20)
        self.client.correlation_id += 1
        number = self.client.correlation_id.to_bytes(4, "big")
        header = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + number + b"\0\1a\0"
        body = header + self.dice.randbytes(self.dice.randrange(100))
        await self.client.send(len(body).to_bytes(4, "big") + body)

    async def out_of_order(self) -> None:
        steps: list[Callable[[], Awaitable[object]]] = [
            lambda: self.handshake("PLAIN"),
            lambda: self.handshake(altered(self.dice, b"PLAIN").hex()),
            lambda: self.exchange(b""),
            lambda: self.exchange(ScramClient(SCRAM[0], USERNAME, PASSWORD).first()),
        ]
        for step in self.dice.choices(steps, k=3):
            await step()

    async def broken_frame(self) -> None:
        """Send a part of a frame, or one of an impossible size, and go."""
        frame = self.client.frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        size = self.dice.choice([frame[:4], b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"])
        await self.client.send(size + frame[4 : self.dice.randrange(5, len(frame))])
        raise EOFError

    def scram(self) -> tuple[str, ScramClient]:
        mechanism = self.dice.choice(SCRAM)
        return mechanism, ScramClient(mechanism, USERNAME, PASSWORD, nonce=self.dice.randbytes(12).hex())


ATTACKS = [
    Conversation.altered_plain,
    Conversation.altered_first,
    Conversation.altered_final,
    Conversation.replayed,
    Conversation.channel_binding,
    Conversation.altered_token,
    Conversation.altered_bearer,
    Conversation.too_early,
    Conversation.out_of_order,
    Conversation.broken_frame,
]


def token(key: ECKey = KEY) -> str:
    claims = {"sub": USERNAME, "iat": int(time.time()), "exp": int(time.time()) + 600}
    return jwt.encode({"alg": "ES256", "kid": "key"}, claims, key, ["ES256"])


def replaced(dice: Random, text: str) -> str:
    """Return a text with another character of base64 somewhere."""
    place = dice.randrange(len(text))
    others = [each for each in string.ascii_letters + string.digits if each != text[place]]
    return text[:place] + dice.choice(others) + text[place + 1 :]


def altered(dice: Random, message: bytes) -> bytes:
    """Return another message that is truncated, longer, partly replaced, or has nothing to do with this one."""
    alteration = dice.randrange(5)
    if alteration == 0:
        return message[: dice.randrange(len(message))]
    if alteration == 1:
        return message + dice.randbytes(dice.choice([1, 100, 5000]))
    if alteration == 2:
        return dice.randbytes(dice.randrange(200))
    changed = bytearray(message)
    for _ in range(dice.randrange(1, 4)):
        changed[dice.randrange(len(changed))] ^= dice.randrange(1, 256)
    return bytes(changed) if changed != message else b""


async def attack(target: Target, numbers: range, seed: int) -> None:
    """Hold these conversations, some at a time. Raises Answered, trio.TooSlowError."""
    recordings = {mechanism: await record(target, mechanism) for mechanism in SCRAM}
    remaining = iter(numbers)

    async def take_turns() -> None:
        for number in remaining:
            await converse(target, Random(seed * 1_000_000 + number), recordings)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(take_turns)
    counters = seen(target.server)
    with trio.fail_after(LIMIT_S):
        await counters.until(lambda: counters.connections == 0)


async def converse(target: Target, dice: Random, recordings: dict[str, Recording]) -> None:
    with trio.fail_after(LIMIT_S):
        async with connect(target.server, tls=target.tls) as client:
            conversation = Conversation(client, dice, recordings)
            try:
                await dice.choice(ATTACKS)(conversation)
                await conversation.must_be_refused()
            except (EOFError, trio.BrokenResourceError):
                return  # refused before, or the attacker has gone


async def record(target: Target, mechanism: str) -> Recording:
    """Authenticate, and return the messages that did."""
    async with connect(target.server, tls=target.tls) as client:
        conversation = Conversation(client, Random(1), {})
        scram = ScramClient(mechanism, USERNAME, PASSWORD)
        await conversation.handshake(mechanism)
        first = scram.first()
        final = scram.final(await conversation.exchange(first))
        scram.verify(await conversation.exchange(final))
        await client.ask(METADATA, 12)
        return Recording(first, final)
