from __future__ import annotations

from typing import Any

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from korvet.security.scram import ScramMechanism, credential_of
from tests.handlers.support import Shim, ask, away, new_broker

SHA_256, SHA_512 = ScramMechanism


async def describe(broker: Broker, *names: str) -> Any:
    users = [UserName(name=name) for name in names] if names else None
    return await ask(broker, 50, 0, DescribeUserScramCredentialsRequest(users=users))


async def put(broker: Broker, name: str, *mechanisms: ScramMechanism) -> None:
    for mechanism in mechanisms:
        credential = credential_of(mechanism, b"salted", b"salt", 4096 + mechanism)
        await broker.users.put(name, mechanism, credential)


def found(response: Any) -> dict[str, list[tuple[int, int]]]:
    assert 0 == response.error_code
    return {
        each.user: [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in response.results
        if not each.error_code
    }


async def test_all_users_are_described_if_none_is_named(broker: Broker) -> None:
    assert {} == found(await describe(broker))
    await put(broker, "a", SHA_256, SHA_512)
    await put(broker, "b", SHA_512)

    assert {"a": [(1, 4097), (2, 4098)], "b": [(2, 4098)]} == found(await describe(broker))
    none = DescribeUserScramCredentialsRequest(users=[])
    assert ["a", "b"] == [each.user for each in (await ask(broker, 50, 0, none)).results]


async def test_named_users_are_described_each_on_its_own(broker: Broker) -> None:
    await put(broker, "a", SHA_256)
    await put(broker, "twice", SHA_256)
    response = await describe(broker, "a", "twice", "missing", "twice")

    assert {"a": [(1, 4097)]} == found(response)
    assert [
        (
            "twice",
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: twice",
        ),
        (
            "missing",
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to describe a user credential that does not exist: missing",
        ),
    ] == [(each.user, each.error_code, each.error_message) for each in response.results if each.error_code]


async def test_unreachable_storage_is_the_error_of_the_response() -> None:
    broker = await new_broker()
    broker.users.storage = Shim(broker._storage, documents=away)

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await describe(broker)).error_code
