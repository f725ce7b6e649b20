from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from tests.handlers.acls import secured_broker
from tests.handlers.quotas import DESCRIBE, Names, describe, set_quotas, stored
from tests.handlers.support import ask, new_broker

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
CONSUMER = {"consumer_byte_rate": 7.0}
ENTITIES: list[Names] = [
    {"client-id": None},
    {"client-id": None, "user": "alice"},
    {"client-id": "c"},
    {"client-id": "c", "user": None},
    {"client-id": "c", "user": "alice"},
    {"ip": None},
    {"ip": "10.0.0.1"},
    {"user": None},
    {"user": "alice"},
]


async def with_entities() -> Broker:
    broker = await new_broker()
    for names in reversed(ENTITIES):
        await set_quotas(broker, names, **{"connection_creation_rate": 7.0} if "ip" in names else CONSUMER)
    return broker


@pytest.mark.parametrize(
    "components, strict, expected",
    [
        ([], False, ENTITIES),
        ([], True, []),
        ([("user", EXACT, "alice")], True, [{"user": "alice"}]),
        ([("user", EXACT, "alice")], False, [names for names in ENTITIES if names.get("user") == "alice"]),
        ([("user", DEFAULT, None)], True, [{"user": None}]),
        ([("user", SPECIFIED, None)], True, [{"user": None}, {"user": "alice"}]),
        ([("client-id", EXACT, "c"), ("user", SPECIFIED, None)], False, ENTITIES[3:5]),
        ([("client-id", SPECIFIED, None), ("user", SPECIFIED, None)], True, [ENTITIES[1], *ENTITIES[3:5]]),
        ([("ip", SPECIFIED, None)], False, ENTITIES[5:7]),
        ([("ip", EXACT, "10.0.0.2")], False, []),
    ],
)
async def test_filter_selects_entities(
    components: list[tuple[str, int, str | None]], strict: bool, expected: list[Names]
) -> None:
    found = await stored(await with_entities(), *components, strict=strict)

    assert expected == [names for names, _ in found]


async def test_response_has_the_values() -> None:
    broker = await new_broker()
    await set_quotas(broker, {"user": "a"}, request_percentage=0.5, producer_byte_rate=2.0**62)

    assert [({"user": "a"}, {"producer_byte_rate": 2.0**62, "request_percentage": 0.5})] == await stored(
        broker
    )


@pytest.mark.parametrize(
    "components, code, message",
    [
        ([("", EXACT, "a")], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
        (
            [("user", EXACT, "a"), ("user", SPECIFIED, None)],
            ErrorCode.INVALID_REQUEST,
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("group", EXACT, "a")], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, "Unknown match type 3"),
        (
            [("user", EXACT, None)],
            ErrorCode.INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", DEFAULT, "a")],
            ErrorCode.INVALID_REQUEST,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("ip", EXACT, "10.0.0.1"), ("user", EXACT, "a")],
            ErrorCode.INVALID_REQUEST,
            (
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            ),
        ),
    ],
)
async def test_invalid_filter_is_refused(
    components: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    answer = await describe(await with_entities(), *components)

    assert (code, message, None) == (answer.error_code, answer.error_message, answer.entries)


async def test_client_without_describe_configs_is_refused() -> None:
    request = DescribeClientQuotasRequest(components=[], strict=False)
    answer = await ask(await secured_broker(), DESCRIBE, 0, request, principal="User:alice")

    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED == answer.error_code
    assert answer.entries is None
