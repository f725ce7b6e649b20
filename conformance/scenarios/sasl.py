"""SASL: the requests that are accepted before a client has authenticated, and the messages of each mechanism."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence

from attrs import define

from conformance.peers import REAUTH, REAUTH_MS, SASL, SASL_USER
from conformance.scenario import scenario
from conformance.talk import Connection, Ended, Talk, Unexpected
from conformance.tokens import token
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.security.scram import ScramMechanism, salted_password
from tests.support.frames import SIZE

USER, PASSWORD = SASL_USER
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SALT, ITERATIONS = b"salt of the user", 4096
NONCE = "rOprNGfwEbeRWgbNEkqO"
ALL_TOPICS = MetadataRequest(topics=[], allow_auto_topic_creation=False)
# Kafka accepts another authentication of a connection once per second.
BETWEEN_REAUTHENTICATIONS_S = 1.2


def api_versions(cluster_id: str | None = None, node_id: int = -1) -> ApiVersionsRequest:
    return ApiVersionsRequest(
        client_software_name="judge", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )


API_VERSIONS = api_versions()


def handshake(mechanism: str) -> SaslHandshakeRequest:
    return SaslHandshakeRequest(mechanism=mechanism)


def message(data: bytes | str) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=data.encode() if isinstance(data, str) else data)


def plain(name: str = USER, password: str = PASSWORD, identity: str = "") -> SaslAuthenticateRequest:
    return message(f"{identity}\0{name}\0{password}")


def bearer(text: str, identity: str = "", pairs: str = "") -> SaslAuthenticateRequest:
    name = f"a={identity}" if identity else ""
    return message(f"n,{name},\1auth=Bearer {text}\1{pairs}\1")


def with_user(talk: Talk) -> None:
    """Give the user its SCRAM credentials, through the listener without SASL."""
    for mechanism in ScramMechanism:
        salted = salted_password(mechanism, PASSWORD, SALT, ITERATIONS)
        set_credential(talk, USER, mechanism, salted)
    talk.settle()


def set_credential(talk: Talk, name: str, mechanism: ScramMechanism, salted: bytes) -> None:
    upserted = ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=ITERATIONS, salt=SALT, salted_password=salted
    )
    answer = talk.tell(AlterUserScramCredentialsRequest(deletions=[], upsertions=[upserted]))
    if answer.results[0].error_code:
        raise Unexpected(f"{talk.peer.name} does not set a credential: {answer}")


def begun(talk: Talk, mechanism: str, listener: str = SASL) -> Connection:
    """Return a new client whose handshake is done."""
    client = talk.client(listener=listener)
    talk.ask(handshake(mechanism), 1, "handshake", on=client)
    return client


def outcome(talk: Talk, request: object, label: str, client: Connection) -> None:
    """Keep only the error of the response, because its other fields are compared elsewhere."""
    version = talk.send(request, on=client)
    answer = talk.receive(request, version, label, on=client)
    del talk.steps[-1]
    talk.note(label, answer.how if isinstance(answer, Ended) else ErrorCode(answer.error_code).name)


def still_served(talk: Talk, client: Connection, label: str) -> None:
    """Ask for something that only an authenticated client gets."""
    talk.ask(ALL_TOPICS, label=f"{label}: then Metadata", on=client)


# --- States ------------------------------------------------------------------------------------------------------


@scenario(SaslHandshakeRequest)
def handshakes(talk: Talk, version: int) -> None:
    for mechanism in (*MECHANISMS, "GSSAPI", "plain", ""):
        client = talk.client(listener=SASL)
        talk.ask(handshake(mechanism), version, mechanism or "no name", on=client)
    talk.ask(ALL_TOPICS, label="after a mechanism that is not enabled", on=client)
    talk.ask(handshake("PLAIN"), version, "on a listener without SASL")


@scenario()
def before_the_handshake(talk: Talk, _: int) -> None:
    client = talk.client(listener=SASL)
    outcome(talk, API_VERSIONS, "ApiVersions", client)
    talk.ask(handshake("PLAIN"), label="then a handshake", on=client)
    client = talk.client(listener=SASL)
    outcome(talk, API_VERSIONS, "ApiVersions, again", client)
    outcome(talk, API_VERSIONS, "ApiVersions twice", client)
    client = talk.client(listener=SASL)
    outcome(talk, ApiVersionsRequest(client_software_name="?"), "no software", client)
    outcome(talk, API_VERSIONS, "ApiVersions after no software", client)
    for label, cluster_id, node_id in (
        ("another cluster", "another", 1),
        ("only a broker", None, 1),
        ("only a cluster", "another", -1),
    ):
        client = talk.client(listener=SASL)
        intended = api_versions(cluster_id, node_id)
        outcome(talk, intended, label, client)
        talk.ask(handshake("PLAIN"), label=f"a handshake after {label}", on=client)
    for label, request in (
        ("Metadata", ALL_TOPICS),
        ("ListGroups", ListGroupsRequest()),
        ("SaslAuthenticate", plain()),
        ("users", DescribeUserScramCredentialsRequest(users=[UserName(name=USER)])),
    ):
        talk.ask(request, label=label, on=talk.client(listener=SASL))


@scenario()
def between_handshake_and_authentication(talk: Talk, _: int) -> None:
    for label, request in (
        ("ApiVersions", API_VERSIONS),
        ("Metadata", ALL_TOPICS),
        ("ListGroups", ListGroupsRequest()),
        ("another handshake", handshake("PLAIN")),
    ):
        client = begun(talk, "PLAIN")
        talk.ask(request, label=label, on=client)
        talk.ask(ALL_TOPICS, label=f"{label}: then Metadata", on=client)


@scenario()
def frames_that_are_too_large(talk: Talk, _: int) -> None:
    """Announce a size above sasl.server.max.receive.size, and send nothing of it."""
    for label, size in (("too large", 524_289), ("negative", -1), ("zero", 0)):
        client = talk.client(listener=SASL)
        client.send_bytes(SIZE.pack(size))
        answer = client.receive(2.0)
        talk.note(label, answer.how if isinstance(answer, Ended) else bytes(answer).hex())


@scenario(SaslAuthenticateRequest)
def on_a_listener_without_sasl(talk: Talk, version: int) -> None:
    talk.ask(plain(), version, "SaslAuthenticate")
    talk.ask(ALL_TOPICS, label="then Metadata")


# --- Mechanisms --------------------------------------------------------------------------------------------------


@scenario(SaslAuthenticateRequest)
def passwords(talk: Talk, version: int) -> None:
    with_user(talk)
    for label, request in (
        ("the right one", plain()),
        ("the user's own identity", plain(identity=USER)),
        ("another identity", plain(identity="bob")),
        ("a wrong one", plain(password="wrong")),
        ("an unknown user", plain(name="nobody")),
        ("no user", plain(name="")),
        ("no password", plain(password="")),
        ("another case", plain(name=USER.upper())),
        ("two tokens", message(f"{USER}\0{PASSWORD}")),
        ("four tokens", message(f"\0{USER}\0{PASSWORD}\0")),
        ("nothing", message(b"")),
        ("no UTF-8", message(b"\0\xff\0\xfe")),
    ):
        client = begun(talk, "PLAIN")
        talk.ask(request, version, label, on=client)
        still_served(talk, client, label)


@scenario()
def after_authentication(talk: Talk, _: int) -> None:
    with_user(talk)
    for label, request in (
        ("a handshake", handshake("PLAIN")),
        ("SaslAuthenticate", plain()),
    ):
        client = begun(talk, "PLAIN")
        talk.ask(plain(), label="login", on=client)
        outcome(talk, API_VERSIONS, "ApiVersions", client)
        outcome(talk, api_versions("another", 1), "another cluster", client)
        talk.ask(request, label=label, on=client)
        still_served(talk, client, label)


@scenario()
def bare_messages(talk: Talk, _: int) -> None:
    """After version 0 of the handshake, the mechanism's messages are frames without a header."""
    with_user(talk)
    for label, password in (("the right password", PASSWORD), ("a wrong password", "wrong")):
        client = talk.client(listener=SASL)
        talk.ask(handshake("PLAIN"), 0, "handshake", on=client)
        sent = f"\0{USER}\0{password}".encode()
        client.send_bytes(SIZE.pack(len(sent)) + sent)
        answer = client.receive()
        talk.note(label, answer.how if isinstance(answer, Ended) else bytes(answer).hex() or "empty")
        still_served(talk, client, label)


@define
class Scram:
    """A client of SCRAM that can send wrong messages."""

    talk: Talk
    mechanism: ScramMechanism
    version: int
    client: Connection
    first: str = ""  # without its header
    answer: str = ""

    def begin(
        self, label: str, name: str = USER, header: str = "n,,", extension: str = "", nonce: str = NONCE
    ) -> bool:
        """Send the first message. Return True if the broker sent its nonce."""
        self.first = f"n={name},r={nonce}{extension}"
        return self._sent(f"{label}, first", f"{header}{self.first}")

    def end(
        self, label: str, password: str = PASSWORD, binding: str = "n,,", nonce: str = "", cut: int = 0
    ) -> None:
        """Send the final message."""
        words = dict(word.split("=", 1) for word in self.answer.split(","))
        salt, iterations = base64.b64decode(words["s"]), int(words["i"])
        bare = f"c={base64.b64encode(binding.encode()).decode()},r={nonce or words['r']}"
        digest = self.mechanism.digest
        salted = salted_password(self.mechanism, password, salt, iterations)
        key = hmac.digest(salted, b"Client Key", digest)
        signed = f"{self.first},{self.answer},{bare}".encode()
        signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))[: len(key) - cut]
        self._sent(f"{label}, final", f"{bare},p={base64.b64encode(proof).decode()}")
        server_key = hmac.digest(salted, b"Server Key", digest)
        expected = f"v={base64.b64encode(hmac.digest(server_key, signed, digest)).decode()}"
        self.talk.note(f"{label}, the broker's signature", self.answer == expected)

    def _sent(self, label: str, text: str) -> bool:
        answer = self.talk.ask(message(text), self.version, label, on=self.client)
        self.answer = answer.auth_bytes.decode() if isinstance(answer, SaslAuthenticateResponse) else ""
        words = dict(word.split("=", 1) for word in self.answer.split(",") if "=" in word)
        shown = {name: value if name in "ie" else "some" for name, value in words.items()}
        if "r" in words:
            shown["r"] = "it goes on" if words["r"].startswith(NONCE) and words["r"] != NONCE else "another"
        self.talk.note(f"{label}, words", shown)
        return "r" in words


@scenario(SaslAuthenticateRequest)
def scram(talk: Talk, version: int) -> None:
    with_user(talk)

    def new(mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256) -> Scram:
        return Scram(talk, mechanism, version, begun(talk, mechanism.sasl_name))

    for mechanism in ScramMechanism:
        client = new(mechanism)
        if client.begin(mechanism.sasl_name):
            client.end(mechanism.sasl_name)
        still_served(talk, client.client, mechanism.sasl_name)
    for label, first, final in (
        ("a wrong password", {}, {"password": "wrong"}),
        ("a shorter proof", {}, {"cut": 1}),
        ("no proof", {}, {"cut": 32}),
        ("the user's own identity", {"header": f"n,a={USER},"}, {"binding": f"n,a={USER},"}),
        ("another binding", {}, {"binding": "y,,"}),
        ("another nonce", {}, {"nonce": NONCE}),
        ("an extension", {"extension": ",x=y"}, {}),
    ):
        client = new()
        if client.begin(label, **first):
            client.end(label, **final)
        still_served(talk, client.client, label)
    for label, first in (
        ("an identity of another user", {"header": "n,a=bob,"}),
        ("support of a channel binding", {"header": "y,,"}),
        ("a channel binding", {"header": "p=tls-unique,,"}),
        ("no name", {"name": ""}),
        ("a comma in the name", {"name": "a,b"}),
        ("an escape that there is not", {"name": "a=2D"}),
        ("no nonce", {"nonce": ""}),
        ("a required extension", {"header": "n,,m=x,"}),
    ):
        client = new()
        client.begin(label, **first)
        still_served(talk, client.client, label)
    for label, data in (("nothing", b""), ("a zero", b"\0"), ("no UTF-8", b"n,,n=\xff,r=abc")):
        connection = begun(talk, "SCRAM-SHA-256")
        talk.ask(message(data), version, label, on=connection)


@scenario()
def scram_messages_again(talk: Talk, _: int) -> None:
    """Send the messages of a complete exchange on another connection."""
    with_user(talk)
    mechanism = ScramMechanism.SCRAM_SHA_256
    sent: list[SaslAuthenticateRequest] = []

    @define
    class Recorded(Scram):
        def _sent(self, label: str, text: str) -> bool:
            sent.append(message(text))
            return Scram._sent(self, label, text)  # noqa: SLF001  its own base

    client = Recorded(talk, mechanism, 2, begun(talk, mechanism.sasl_name))
    if client.begin("the first time"):
        client.end("the first time")
    other = begun(talk, mechanism.sasl_name)
    for number, request in enumerate(sent, 1):
        talk.ask(request, label=f"message {number} again", on=other)
    still_served(talk, other, "again")


@scenario()
def users_without_a_credential(talk: Talk, _: int) -> None:
    """Begin SCRAM as a user that has no credential, or lost it."""
    with_user(talk)
    name = talk.name("gone")
    mechanism = ScramMechanism.SCRAM_SHA_256
    set_credential(talk, name, mechanism, b"x" * 32)
    deleted = ScramCredentialDeletion(name=name, mechanism=mechanism)
    talk.tell(AlterUserScramCredentialsRequest(deletions=[deleted], upsertions=[]))
    talk.settle()
    for label, user in (("unknown", "nobody"), ("deleted", name)):
        client = Scram(talk, mechanism, 2, begun(talk, mechanism.sasl_name))
        if client.begin(label, name=user):
            compared = len(talk.steps)
            client.end(label)
            del talk.steps[compared:]
        still_served(talk, client.client, label)


# --- Tokens ------------------------------------------------------------------------------------------------------


@scenario(SaslAuthenticateRequest)
def tokens(talk: Talk, version: int) -> None:
    now = int(time.time())
    good = token(sub=USER, iat=now, exp=now + 600)
    head, body, signature = good.split(".")
    unsigned = base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).decode().rstrip("=")
    cases: Sequence[tuple[str, SaslAuthenticateRequest]] = (
        ("a valid one", bearer(good)),
        ("its subject as the identity", bearer(good, identity=USER)),
        ("another identity", bearer(good, identity="bob")),
        ("an extension", bearer(good, pairs="traceId=123\1")),
        ("expired", bearer(token(sub=USER, iat=now - 600, exp=now - 300))),
        ("without an expiry", bearer(token(sub=USER, iat=now))),
        ("without a subject", bearer(token(iat=now, exp=now + 600))),
        ("for another audience", bearer(token(sub=USER, iat=now, exp=now + 600, aud="others"))),
        ("of another issuer", bearer(token(sub=USER, iat=now, exp=now + 600, iss="others"))),
        ("of an unknown key", bearer(token(sub=USER, iat=now, exp=now + 600, key_id="unknown"))),
        ("another signature", bearer(f"{head}.{body}.{signature[::-1]}")),
        ("not signed", bearer(f"{unsigned}.{body}.")),
        ("no token", bearer("abc")),
        ("another scheme", message(f"n,,\1auth=Basic {good}\1\1")),
        ("no header", message(f"auth=Bearer {good}\1\1")),
        ("nothing", message(b"")),
    )
    for label, request in cases:
        client = begun(talk, "OAUTHBEARER")
        answer = talk.ask(request, version, label, on=client)
        if isinstance(answer, SaslAuthenticateResponse) and not answer.error_code:
            talk.note(f"{label}: the broker's message", answer.auth_bytes.decode())
            if answer.auth_bytes:
                talk.ask(message(b"\1"), version, f"{label}: acknowledged", on=client)
        still_served(talk, client, label)


# --- Sessions ----------------------------------------------------------------------------------------------------


@scenario(SaslAuthenticateRequest)
def sessions_with_a_limit(talk: Talk, version: int) -> None:
    with_user(talk)
    now = int(time.time())

    def logged_in(label: str) -> Connection:
        client = begun(talk, "PLAIN", REAUTH)
        answer = talk.ask(plain(), version, label, on=client)
        if version:
            talk.note(f"{label}: lifetime", answer.session_lifetime_ms)
        return client

    client = logged_in("login")
    talk.ask(handshake("PLAIN"), 1, "a handshake in the first second", on=client)
    talk.ask(plain(), version, "again", on=client)
    talk.ask(handshake("PLAIN"), 1, "another one in the same second", on=client)
    still_served(talk, client, "again")
    time.sleep(BETWEEN_REAUTHENTICATIONS_S)
    talk.ask(handshake("PLAIN"), 1, "a handshake later", on=client)
    talk.ask(ALL_TOPICS, label="Metadata instead of the password", on=client)
    for label, mechanism, request in (
        ("a wrong password", "PLAIN", plain(password="wrong")),
        ("another mechanism", "OAUTHBEARER", bearer(token(sub=USER, iat=now, exp=now + 600))),
        ("a mechanism that is not enabled", "GSSAPI", plain()),
        ("nothing", "PLAIN", message(b"")),
    ):
        client = logged_in("login")
        talk.ask(handshake(mechanism), 1, f"{label}: handshake", on=client)
        talk.ask(request, version, label, on=client)
        still_served(talk, client, label)
    client = begun(talk, "OAUTHBEARER", REAUTH)
    talk.ask(bearer(token(sub=USER, iat=now, exp=now + 600)), version, "a user's token", on=client)
    talk.ask(handshake("OAUTHBEARER"), 1, "handshake of another user", on=client)
    talk.ask(bearer(token(sub="bob", iat=now, exp=now + 600)), version, "another user's token", on=client)
    still_served(talk, client, "another user")


@scenario()
def a_session_that_has_expired(talk: Talk, _: int) -> None:
    with_user(talk)
    for label, request in (("Metadata", ALL_TOPICS), ("a handshake", handshake("PLAIN"))):
        client = begun(talk, "PLAIN", REAUTH)
        talk.ask(plain(), label="login", on=client)
        time.sleep(REAUTH_MS / 1000 + 0.5)
        talk.ask(request, label=label, on=client)
