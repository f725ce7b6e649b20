from __future__ import annotations

import logging
import math

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData
from korvet.security.quota_store import QuotaStore
from korvet.security.shared_document import KEY
from korvet.storage.memory import MemoryStorage
from tests.handlers.acls import secured_broker
from tests.handlers.quotas import ALTER, Names, alter, entry, set_quotas, stored
from tests.handlers.support import Shim, ask, away, new_broker

ALICE: Names = {"user": "alice"}


async def test_quotas_are_set_changed_and_removed() -> None:
    broker = await new_broker()
    await set_quotas(broker, ALICE, producer_byte_rate=1000, request_percentage=12.5)
    await set_quotas(broker, ALICE, producer_byte_rate=2000, request_percentage=None)
    before = await stored(broker)
    await set_quotas(broker, ALICE, producer_byte_rate=None)

    assert [({"user": "alice"}, {"producer_byte_rate": 2000})] == before
    assert [] == await stored(broker)


async def test_removal_of_a_missing_quota_is_no_error() -> None:
    broker = await new_broker()
    await set_quotas(broker, ALICE, producer_byte_rate=None)

    assert [] == await stored(broker)


@pytest.mark.parametrize(
    "names, changes, message",
    [
        ({}, {}, "Invalid empty client quota entity"),
        ({"group": "g"}, {}, "Unhandled client quota entity type: group"),
        ({"user": ""}, {}, "Empty user not supported"),
        ({"ip": "10.0.0.1", "user": "a"}, {}, "Invalid quota entity combination"),
        ({"ip": "no address"}, {}, "no address is not a valid IP or resolvable host."),
        ({"ip": None}, {"producer_byte_rate": 1}, "Invalid configuration key producer_byte_rate"),
        (ALICE, {"connection_creation_rate": 1}, "Invalid configuration key connection_creation_rate"),
        (ALICE, {"speed": 1}, "Invalid configuration key speed"),
        (ALICE, {"producer_byte_rate": 0.0}, "Quota producer_byte_rate must be greater than 0"),
        (ALICE, {"request_percentage": -1}, "Quota request_percentage must be greater than 0"),
        (ALICE, {"request_percentage": math.nan}, "Quota request_percentage must be greater than 0"),
        (ALICE, {"producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value."),
        (ALICE, {"producer_byte_rate": 1e19}, "Proposed value for producer_byte_rate is too large for a LONG."),
        (ALICE, {"consumer_byte_rate": math.inf}, "Proposed value for consumer_byte_rate is too large"),
        ({"ip": None}, {"connection_creation_rate": 2**31}, "Proposed value for connection_creation_rate is too"),
    ],
)  # fmt: skip
async def test_invalid_alteration_is_refused_and_others_are_stored(
    names: Names, changes: dict[str, float], message: str
) -> None:
    broker = await new_broker()
    good = {"consumer_byte_rate": 5.0}
    wrong, right = await alter(broker, entry(names, **changes), entry({"user": "bob"}, **good))

    assert ErrorCode.INVALID_REQUEST == wrong[0]
    assert str(wrong[1]).startswith(message)
    assert (0, None) == right
    assert [({"user": "bob"}, good)] == await stored(broker)


async def test_no_quota_of_an_entity_is_set_if_one_is_invalid() -> None:
    broker = await new_broker()
    await alter(broker, entry(ALICE, producer_byte_rate=1000, consumer_byte_rate=-1))

    assert [] == await stored(broker)


@pytest.mark.parametrize(
    "entries",
    [
        [entry(ALICE, producer_byte_rate=1), entry(ALICE, consumer_byte_rate=2)],
        [evolve(entry(ALICE), ops=entry(ALICE, producer_byte_rate=1).ops * 2)],
    ],
    ids=["entity", "key"],
)
async def test_duplicates_are_refused(entries: list[EntryData]) -> None:
    broker = await new_broker()
    ((code, message),) = await alter(broker, *entries)

    assert ErrorCode.INVALID_REQUEST == code
    assert str(message).startswith("Ignoring duplicate entity")
    assert [] == await stored(broker)


@pytest.mark.parametrize("value, code", [(10.0, ErrorCode.NONE), (-1.0, ErrorCode.INVALID_REQUEST)])
async def test_validate_only_stores_nothing(value: float, code: ErrorCode) -> None:
    broker = await new_broker()
    ((found, _),) = await alter(broker, entry(ALICE, producer_byte_rate=value), validate_only=True)

    assert code == found
    assert [] == await stored(broker)


async def test_too_many_alterations_are_refused_together() -> None:
    broker = await new_broker()
    changes = {f"key-{number}": 1.0 for number in range(5001)}
    entries = [entry({"user": name}, **changes) for name in "ab"]

    assert [ErrorCode.POLICY_VIOLATION] * 2 == [code for code, _ in await alter(broker, *entries)]


async def test_client_without_alter_configs_is_refused_with_the_entities_as_it_sent_them() -> None:
    broker = await secured_broker()
    names = [EntityData(entity_type="user", entity_name=name) for name in "ab"]
    request = AlterClientQuotasRequest(entries=[EntryData(entity=names, ops=[])], validate_only=False)
    (result,) = (await ask(broker, ALTER, 1, request, principal="User:alice")).entries

    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED == result.error_code
    assert ["a", "b"] == [each.entity_name for each in result.entity]


async def test_error_of_the_store_is_the_error_of_every_entity() -> None:
    broker = await new_broker()
    broker.quotas.stored.storage = Shim(MemoryStorage(), load=away)
    outcomes = await alter(broker, entry(ALICE, producer_byte_rate=1), entry({"user": "b"}))

    assert [ErrorCode.KAFKA_STORAGE_ERROR] * 2 == [code for code, _ in outcomes]


async def test_another_broker_has_the_quotas_when_it_starts_and_changes_within_a_second(
    autojump_clock: MockClock,
) -> None:
    storage = MemoryStorage()
    first = await new_broker(storage)
    await set_quotas(first, ALICE, producer_byte_rate=1)
    second = await new_broker(storage)
    at_start = second.quotas.stored.value
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.quotas.stored.run)
        await trio.sleep(5.2)
        await set_quotas(first, ALICE, producer_byte_rate=2)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert {(("user", "alice"),): {"producer_byte_rate": 1.0}} == at_start
    assert {(("user", "alice"),): {"producer_byte_rate": 2.0}} == second.quotas.stored.value


async def test_broker_starts_without_quotas_if_their_document_is_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    await storage.save(QuotaStore.kind, KEY, QuotaStore.encoded({})[:-1], expected_version=0)
    with caplog.at_level(logging.WARNING):
        broker = await new_broker(storage)

    assert {} == broker.quotas.stored.value
    assert ["the broker keeps the 0 entities with quotas it has"] == [
        message.partition(":")[0] for message in caplog.messages
    ]
