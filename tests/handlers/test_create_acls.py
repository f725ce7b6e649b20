from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode, TopicAuthorizationFailed
from korvet.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from korvet.storage.memory import MemoryStorage
from tests.handlers.acls import create_acls, creation, names_of, secured_broker
from tests.handlers.support import Shim, away, context

ALICE = context(0, principal="User:alice")


async def test_acl_is_used_when_the_broker_responds() -> None:
    broker = await secured_broker()
    with pytest.raises(TopicAuthorizationFailed):
        broker.authorize(ALICE, Operation.READ, ResourceType.TOPIC, "orders")
    results = await create_acls(broker, creation())
    broker.authorize(ALICE, Operation.READ, ResourceType.TOPIC, "orders")

    assert [(ErrorCode.NONE, "")] == [(each.error_code, each.error_message) for each in results]


async def test_another_broker_starts_with_the_acl() -> None:
    storage = MemoryStorage()
    await create_acls(await secured_broker(storage), creation())
    other = await secured_broker(storage)

    other.authorize(ALICE, Operation.READ, ResourceType.TOPIC, "orders")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"resource_name": ""}, "Invalid empty resource name"),
        (
            {"resource_type": ResourceType.CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": 99}, "Invalid patternType UNKNOWN"),
        ({"resource_pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission_type": 99}, "Invalid permissionType UNKNOWN"),
        ({"permission_type": Permission.ANY}, "Invalid permissionType ANY"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
    ],
)
async def test_invalid_acl_is_refused_and_the_others_are_created(
    values: dict[str, Any], message: str
) -> None:
    broker = await secured_broker()
    wrong, right = await create_acls(broker, creation(**values), creation(resource_name="right"))

    assert ErrorCode.INVALID_REQUEST == wrong.error_code
    assert wrong.error_message.startswith(message)
    assert ErrorCode.NONE == right.error_code
    assert ["right"] == await names_of(broker)


async def test_acl_that_exists_already_is_no_error() -> None:
    broker = await secured_broker()
    results = await create_acls(broker, creation(), creation())
    results += await create_acls(broker, creation())

    assert {ErrorCode.NONE} == {each.error_code for each in results}
    assert ["orders"] == await names_of(broker)


async def test_acl_on_the_cluster_has_its_name() -> None:
    broker = await secured_broker()
    cluster = creation(resource_type=ResourceType.CLUSTER, resource_name=CLUSTER_NAME)
    (result,) = await create_acls(broker, cluster)

    assert ErrorCode.NONE == result.error_code


async def test_client_needs_alter_on_the_cluster() -> None:
    broker = await secured_broker()
    results = await create_acls(broker, creation(), creation(resource_name=""), principal="User:alice")

    assert [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2 == [each.error_code for each in results]
    assert [] == await names_of(broker)


async def test_broker_without_authorizer_has_no_acls(broker: Broker) -> None:
    (result,) = await create_acls(broker, creation())

    assert (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.") == (
        result.error_code,
        result.error_message,
    )


async def test_nothing_is_created_while_the_store_is_away() -> None:
    storage = MemoryStorage()
    broker = await secured_broker(storage)
    assert broker.authorization is not None
    broker.authorization.acls.storage = Shim(storage, save=away)
    (result,) = await create_acls(broker, creation())
    broker.authorization.acls.storage = storage

    assert ErrorCode.KAFKA_STORAGE_ERROR == result.error_code
    assert [] == await names_of(broker)
