from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.security.acls import Operation, PatternType, ResourceType
from tests.handlers.acls import create_acls, creation, describe_acls, names_of, secured_broker


async def test_acls_are_grouped_by_resource_pattern() -> None:
    broker = await secured_broker()
    prefixed = creation(resource_name="or", resource_pattern_type=PatternType.PREFIXED)
    await create_acls(broker, creation(), creation(operation=Operation.WRITE), prefixed)
    response = await describe_acls(broker)

    assert (ErrorCode.NONE, "") == (response.error_code, response.error_message)
    assert [
        (ResourceType.TOPIC, PatternType.LITERAL, "orders", [Operation.READ, Operation.WRITE]),
        (ResourceType.TOPIC, PatternType.PREFIXED, "or", [Operation.READ]),
    ] == [
        (each.resource_type, each.pattern_type, each.resource_name, [acl.operation for acl in each.acls])
        for each in response.resources
    ]


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"resource_name_filter": "orders"}, ["orders"]),
        ({"resource_name_filter": "orders", "pattern_type_filter": PatternType.MATCH}, ["*", "orders", "or"]),
        ({"resource_type_filter": ResourceType.GROUP}, []),
        ({"principal_filter": "User:alice"}, ["*", "orders", "or"]),
        ({"principal_filter": "User:bob"}, []),
        ({"operation": 99}, []),
        ({"resource_type_filter": 99}, []),
        ({"pattern_type_filter": 99}, []),
        ({"permission_type": 99}, []),
    ],
)
async def test_filter_selects_acls(values: dict[str, Any], expected: list[str]) -> None:
    broker = await secured_broker()
    prefixed = creation(resource_name="or", resource_pattern_type=PatternType.PREFIXED)
    await create_acls(broker, creation(), creation(resource_name="*"), prefixed)

    assert expected == await names_of(broker, **values)


async def test_client_needs_describe_on_the_cluster() -> None:
    response = await describe_acls(await secured_broker(), principal="User:alice")

    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED == response.error_code


async def test_broker_without_authorizer_has_no_acls(broker: Broker) -> None:
    response = await describe_acls(broker)

    assert ErrorCode.SECURITY_DISABLED == response.error_code
