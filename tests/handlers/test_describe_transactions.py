from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.authorization import Authorization
from korvet.broker.broker import Broker
from korvet.protocol.codec import decode
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from korvet.security.acl_store import AclStore
from korvet.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import StandardAuthorizer
from korvet.storage.interface import TopicPartition
from tests.handlers.support import NOW_MS, T0, Shim, ask, away, create, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating
from tests.protocol.samples import encoded


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        await create(broker, partitions=2)
        await create(broker, "s")
        yield broker


async def describe(broker: Broker, *ids: str) -> list[TransactionState]:
    """Return the states as a client reads them, since those of repeated ids are encoded already."""
    handled = await ask(broker, 65, 0, DescribeTransactionsRequest(transactional_ids=list(ids)))
    response, _ = decode(DescribeTransactionsResponse, 0, memoryview(encoded(handled, 0)))
    states: list[TransactionState] = response.transaction_states
    return states


async def test_state_of_an_id(broker: Broker) -> None:
    producer = TransactionalProducer(broker)
    await producer.init(timeout_ms=1234)
    (empty,) = await describe(broker, "x")
    for tp in (TopicPartition("t", 1), T0, TopicPartition("s", 0)):
        await producer.send(b"a", tp=tp)
    (ongoing,) = await describe(broker, "x")
    await producer.finish()
    (complete,) = await describe(broker, "x")

    assert ("Empty", 1234, -1, producer.producer_id, 0, []) == (
        empty.transaction_state,
        empty.transaction_timeout_ms,
        empty.transaction_start_time_ms,
        empty.producer_id,
        empty.producer_epoch,
        empty.topics,
    )
    assert ("Ongoing", NOW_MS) == (ongoing.transaction_state, ongoing.transaction_start_time_ms)
    assert [("s", [0]), ("t", [0, 1])] == [(each.topic, each.partitions) for each in ongoing.topics]
    assert ("CompleteCommit", 1, []) == (
        complete.transaction_state,
        complete.producer_epoch,
        complete.topics,
    )


async def test_each_id_has_its_own_result(broker: Broker) -> None:
    await TransactionalProducer(broker).init()

    found = await describe(broker, "made-up", "x", "", "x")

    assert [
        ("made-up", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("x", ErrorCode.NONE),
        ("", ErrorCode.INVALID_REQUEST),
        ("x", ErrorCode.NONE),
    ] == [(each.transactional_id, each.error_code) for each in found]


async def test_topics_that_the_client_may_not_describe_are_left_out(broker: Broker) -> None:
    producer = TransactionalProducer(broker)
    await producer.init()
    for tp in (T0, TopicPartition("s", 0)):
        await producer.send(b"a", tp=tp)
    authorizer = StandardAuthorizer()
    broker.authorization = Authorization(authorizer, AclStore(broker._storage, lambda _: None))
    allowed = (ResourceType.TRANSACTIONAL_ID, "x"), (ResourceType.TOPIC, "s")
    authorizer.acls_changed(
        [
            Acl(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", Operation.DESCRIBE, Permission.ALLOW)
            for kind, name in allowed
        ]
    )

    (found,) = await describe(broker, "x")

    assert [("s", [0])] == [(each.topic, each.partitions) for each in found.topics]


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    broker.transactions.storage = Shim(broker._storage, load=away)

    (found,) = await describe(broker, "x")
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == found.error_code
