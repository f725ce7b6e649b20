from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode, TopicAuthorizationFailed
from korvet.security.acls import Operation, PatternType, ResourceType
from tests.handlers.acls import create_acls, creation, delete_acls, names_of, secured_broker, selection
from tests.handlers.support import context


async def test_selected_acls_are_deleted_and_listed() -> None:
    broker = await secured_broker()
    await create_acls(broker, creation(), creation(resource_name="payments"))
    (result,) = await delete_acls(broker, selection(resource_name_filter="orders"))

    assert ErrorCode.NONE == result.error_code
    assert ["orders"] == [each.resource_name for each in result.matching_acls]
    assert ["payments"] == await names_of(broker)
    with pytest.raises(TopicAuthorizationFailed):
        broker.authorize(context(0, principal="User:alice"), Operation.READ, ResourceType.TOPIC, "orders")


async def test_acl_that_several_filters_select_is_listed_for_each() -> None:
    broker = await secured_broker()
    await create_acls(broker, creation())
    results = await delete_acls(broker, selection(), selection(resource_name_filter="orders"))

    assert [1, 1] == [len(result.matching_acls) for result in results]


@pytest.mark.parametrize(
    "values",
    [
        {"operation": 99},
        {"permission_type": 99},
        {"resource_type_filter": 99},
        {"pattern_type_filter": 0},
    ],
)
async def test_unknown_filter_deletes_nothing(values: dict[str, Any]) -> None:
    broker = await secured_broker()
    await create_acls(broker, creation(), creation(resource_name="payments"))
    wrong, right = await delete_acls(broker, selection(**values), selection(resource_name_filter="orders"))

    assert ErrorCode.INVALID_REQUEST == wrong.error_code
    assert [] == wrong.matching_acls
    assert 1 == len(right.matching_acls)
    assert ["payments"] == await names_of(broker)


async def test_filter_for_a_name_selects_the_patterns_that_apply_to_it() -> None:
    broker = await secured_broker()
    prefixed = creation(resource_name="or", resource_pattern_type=PatternType.PREFIXED)
    await create_acls(broker, creation(), prefixed, creation(resource_name="ord"))
    await delete_acls(broker, selection(resource_name_filter="orders", pattern_type_filter=PatternType.MATCH))

    assert ["ord"] == await names_of(broker)


async def test_client_needs_alter_on_the_cluster() -> None:
    broker = await secured_broker()
    await create_acls(broker, creation())
    (result,) = await delete_acls(broker, selection(), principal="User:alice")

    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED == result.error_code
    assert ["orders"] == await names_of(broker)


async def test_broker_without_authorizer_has_no_acls(broker: Broker) -> None:
    (result,) = await delete_acls(broker, selection())

    assert ErrorCode.SECURITY_DISABLED == result.error_code
