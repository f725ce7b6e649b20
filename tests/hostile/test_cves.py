"""Vulnerabilities of Apache Kafka that were published in 2026, tried on korvet.

CVE-2026-111073 (a small compressed payload of PushTelemetry grows without limit) concerns an API that korvet does not
serve; `test_decompression` tries the same with record batches. CVE-2026-35554 is a fault of the Java producer: a buffer
is used again while it is being sent. A broker can notice that only by the checksum. No public description of
CVE-2026-110985 was found.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import trio
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from korvet.handlers import APIS
from korvet.protocol.errors import ErrorCode
from korvet.protocol.field_writing import uvarint
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.security.jwks import Jwks
from korvet.security.oauthbearer import InvalidToken
from korvet.security.tokens import TokenRules, TokenVerifier
from tests.handlers.support import T0, ask, batch, create, new_broker, produce_request
from tests.hostile.measuring import API_VERSIONS, client_of, highest_bytes, neighbour, reset_highest
from tests.processes import KorvetProcess
from tests.talk import connect, serving

PUSH_TELEMETRY = 72


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("count", [10_001, 999_000])
async def test_cve_2026_111115_tagged_fields_in_a_header_before_login(count: int) -> None:
    header = struct.pack(">hhih", 18, 3, 1, -1) + uvarint(count) + b"\x40\0" * count
    async with serving() as server, connect(server) as client, connect(server) as other:
        await client.send(frame(header + b"\x01\x01\0"))
        await client.closed()
        await other.ask(API_VERSIONS, 3)


@pytest.mark.parametrize("count", [100_000, 2**31 - 1])
async def test_cve_2026_111108_array_that_announces_more_than_arrived(count: int) -> None:
    metadata = struct.pack(">hhihi", 3, 1, 1, -1, count)
    async with serving() as server, connect(server) as client, connect(server) as other:
        await client.send(frame(metadata + bytes(50_000)))
        await client.closed()
        await other.ask(API_VERSIONS, 3)


@pytest.mark.slow
async def test_cve_2026_111108_million_elements_do_not_delay_others_for_long() -> None:
    """A Metadata of 1,000,000 names took 294 MB, and another client waited 1.3 s."""
    names = b"".join(struct.pack(">h7s", 7, b"%07d" % number) for number in range(1_000_000))
    request = struct.pack(">hhihi", 3, 4, 1, -1, 1_000_000) + names + b"\0"
    with KorvetProcess() as broker:
        async with client_of(broker) as client, client_of(broker) as other:
            await other.ask(API_VERSIONS, 3)
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)
            async with neighbour(other) as waits:
                await client.send(frame(request))
                answer = await client.receive()
            took = highest_bytes(broker.pid) - before

    assert len(answer) > 10_000_000
    assert waits.count > 20
    assert took < 294_000_000


@pytest.mark.slow
async def test_cve_2026_111108_large_requests_of_many_clients_take_memory_in_turn() -> None:
    """Four Metadata of 1,000,000 names took 1,050 MB."""
    names = b"".join(struct.pack(">h7s", 7, b"%07d" % number) for number in range(200_000))
    request = struct.pack(">hhihi", 3, 4, 1, -1, 200_000) + names + b"\0"
    answers = []

    async def ask_for_names(broker: KorvetProcess) -> None:
        async with client_of(broker) as client:
            await client.send(frame(request))
            answers.append(len(await client.receive()))

    with KorvetProcess() as broker:
        reset_highest(broker.pid)
        before = highest_bytes(broker.pid)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask_for_names, broker)
        took = highest_bytes(broker.pid) - before

    assert [answers[0]] * 5 == answers
    assert took < 180_000_000


async def test_cve_2026_111073_push_telemetry_is_not_served() -> None:
    assert PUSH_TELEMETRY not in APIS
    async with serving() as server, connect(server) as client:
        versions = await client.ask(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
        )
        assert PUSH_TELEMETRY not in {each.api_key for each in versions.api_keys}


async def test_cve_2026_33557_token_with_another_key_issuer_or_audience_is_refused(tmp_path: Path) -> None:
    key, stranger = RSAKey.generate_key(2048, {"kid": "k"}), RSAKey.generate_key(2048, {"kid": "k"})
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(KeySet([key]).as_dict(private=False)))
    rules = TokenRules(issuer="https://issuer", audiences=("korvet",))
    verifier = TokenVerifier(rules, Jwks(file.as_uri()), lambda: 1_000)
    claims = {"sub": "root", "iat": 990, "exp": 1_060, "iss": "https://issuer", "aud": "korvet"}

    def token(signer: RSAKey = key, **others: object) -> str:
        return jwt.encode({"alg": "RS256", "kid": "k"}, claims | others, signer, ["RS256"])

    assert "root" == (await verifier.verify(token())).subject
    for forged in (token(stranger), token(iss="https://other"), token(aud="other")):
        with pytest.raises(InvalidToken):
            await verifier.verify(forged)


async def test_cve_2026_35554_batch_that_was_overwritten_while_it_was_sent_is_refused() -> None:
    broker = await new_broker()
    await create(broker)
    overwritten = batch(b"of this topic")
    overwritten[-8:] = b"of other"
    response = await ask(broker, 0, 9, produce_request({T0: overwritten}))

    assert ErrorCode.CORRUPT_MESSAGE == response.responses[0].partition_responses[0].error_code
