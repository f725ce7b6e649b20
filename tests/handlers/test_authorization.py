"""The answers of every API to every principal, compared with the table that was recorded from Apache Kafka.

`python -m conformance.authorization --write` records it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from conformance.answers import Fields, Reader
from conformance.authorization import table
from conformance.authorization.cases import CASES
from conformance.authorization.rows import ROWS, prepared, version_of
from conformance.comparison import differing
from conformance.peers import MEMORY, Peer
from conformance.talk import CLOSED, Step, Talk
from korvet.broker.authorization import Authorization
from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect
from korvet.handlers import APIS
from korvet.protocol.codec import decode, encode
from korvet.protocol.schema import schema_of
from korvet.security.acl_store import AclStore
from korvet.security.authorizer import StandardAuthorizer
from tests.handlers.support import ask, new_broker

SCOPE = "s0000v00"
ALICE = "User:alice"

#: Fields in which korvet differs from Kafka where the operation is allowed, and the reason.
DECLARED = {
    r"Fetch v18: fetch of a replica by id: .*": "korvet answers replicas like consumers",
    r"(Describe|Alter|IncrementalAlter)Configs .*\[metrics\]\.error_code": "they have no settings in korvet",
    r"CreateTopics v7: .*topic_id": "Kafka makes up an id for a topic that it only validates",
    r"Metadata v12: metadata that creates a topic: .*": "korvet answers when the topic exists",
}


async def answered(broker: Broker, key: int, version: int, request: object, principal: str) -> object:
    """Return what the handler answers, encoded and decoded again."""
    try:
        answer = await ask(broker, key, version, request, principal=principal)
    except Disconnect:
        return CLOSED
    parts: list[bytes] = []
    encode(answer, version, lambda part: parts.append(bytes(part)))
    return decode(APIS[key].response, version, memoryview(b"".join(parts)))[0]


async def answers_to(name: str) -> Mapping[str, Fields]:
    """Return the answers to the principal of a case, by row."""
    broker = await new_broker()
    talk = Talk(Peer(MEMORY, 0), SCOPE)
    for request in prepared(talk):
        key, version = schema_of(type(request)).key, version_of(request)
        talk._learn(request, await answered(broker, key, version, request, ALICE))
    authorizer = StandardAuthorizer()
    broker.authorization = Authorization(authorizer, AclStore(broker._storage, lambda _: None))
    authorizer.acls_changed(CASES[name].acls(ALICE, SCOPE))
    for row_name, row, version in table.row_names():
        answer = await answered(broker, row.key, version, row.build(talk, version), ALICE)
        talk._learn(row, answer)
        talk.steps.append(Step(row_name, APIS[row.key].name, version, answer))
    reader = Reader(talk, as_records=True)
    return {step.label: table.decided(reader.fields(step)) for step in talk.steps}


def is_declared(path: str, theirs: str) -> bool:
    """Return True for a declared difference. Nothing that Kafka refuses may be allowed."""
    return "AUTHORIZATION" not in theirs and any(re.fullmatch(pattern, path) for pattern in DECLARED)


def test_every_api_is_in_the_table() -> None:
    assert set(APIS) == {row.key for row in ROWS}
    assert {name for name, *_ in table.row_names()} == set(table.read())


@pytest.mark.parametrize("name", CASES)
async def test_every_answer_to_a_principal_is_that_of_apache_kafka(name: str) -> None:
    expected = {row: by_case[name] for row, by_case in table.read().items()}
    answers = await answers_to(name)
    differences = [
        f"{row}: {field}: Apache Kafka {theirs}, korvet {ours}"
        for row, fields in expected.items()
        for field, theirs, ours in differing(row.partition(" ")[0], fields, answers[row])
        if not is_declared(f"{row}: {field}", theirs)
    ]

    assert [] == differences
