from __future__ import annotations

import pytest
from attrs import evolve

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode, error_for
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.handlers.support import ask


async def find(
    broker: Broker, *keys: str, key_type: int = 0, version: int = 6, listener_name: str = "PLAINTEXT"
) -> FindCoordinatorResponse:
    if version < 4:
        request = FindCoordinatorRequest(key=keys[0], key_type=key_type)
    else:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    response = await ask(broker, 10, version, request, listener_name=listener_name)
    assert isinstance(response, FindCoordinatorResponse)
    return response


@pytest.mark.parametrize("version", [0, 3])
async def test_this_broker_coordinates_a_group(broker: Broker, version: int) -> None:
    found = await find(broker, "g", version=version)

    assert (ErrorCode.NONE, 1, "broker.example", 9092) == (
        found.error_code,
        found.node_id,
        found.host,
        found.port,
    )


async def test_success_has_the_error_message_of_kafka(broker: Broker) -> None:
    assert "NONE" == (await find(broker, "g", version=3)).error_message
    assert "" == (await find(broker, "g", version=4)).coordinators[0].error_message


async def test_several_keys_are_answered_from_version_4(broker: Broker) -> None:
    found = await find(broker, "a", "", "b", version=4, listener_name="INSIDE")

    assert [(key, ErrorCode.NONE, 1, "inside.example", 9093) for key in ("a", "", "b")] == [
        (each.key, each.error_code, each.node_id, each.host, each.port) for each in found.coordinators
    ]


@pytest.mark.parametrize(
    "key_type, error",
    [
        (2, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.INVALID_REQUEST),
        (-1, ErrorCode.INVALID_REQUEST),
    ],
    ids=["share", "unknown", "negative"],
)
@pytest.mark.parametrize("version", [3, 6])
async def test_other_key_types_are_refused(
    broker: Broker, key_type: int, error: ErrorCode, version: int
) -> None:
    found = await find(broker, "x", key_type=key_type, version=version)

    answer = found if version < 4 else found.coordinators[0]
    assert (error, -1, "", -1) == (answer.error_code, answer.node_id, answer.host, answer.port)


@pytest.mark.parametrize("version", [3, 6])
async def test_this_broker_coordinates_a_transactional_id(broker: Broker, version: int) -> None:
    found = await find(broker, "x", key_type=1, version=version)

    answer = found if version < 4 else found.coordinators[0]
    assert (ErrorCode.NONE, 1, "broker.example", 9092) == (
        answer.error_code,
        answer.node_id,
        answer.host,
        answer.port,
    )


async def test_transactional_ids_are_placed_independently_of_groups(broker: Broker) -> None:
    others = {node_id: evolve(broker.membership.own, node_id=node_id) for node_id in range(1, 4)}
    broker.membership._use(others, others)
    names = [f"name-{number}" for number in range(20)]

    groups = [each.node_id for each in (await find(broker, *names)).coordinators]
    ids = [each.node_id for each in (await find(broker, *names, key_type=1)).coordinators]

    assert {1, 2, 3} == set(ids)
    assert groups != ids
    assert ids == [broker.membership.coordinator(f"transaction:{name}").node_id for name in names]


@pytest.mark.parametrize("version", [3, 6])
async def test_transactional_ids_are_refused_without_transactions(plain: Broker, version: int) -> None:
    found = await find(plain, "x", key_type=1, version=version)

    answer = found if version < 4 else found.coordinators[0]
    assert (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1) == (answer.error_code, answer.node_id)


def test_refusal_of_transactions_is_not_retriable() -> None:
    assert not error_for(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED).retriable
