"""Incremental fetch sessions (KIP-227) through the handler of Fetch."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchResponse, ForgottenTopic
from korvet.storage.interface import TopicPartition
from korvet.storage.memory import MemoryStorage
from tests.handlers.acls import create_acls, creation, secured_broker
from tests.handlers.support import T0, append, ask, create, new_broker
from tests.handlers.test_fetch import request

TPS = [TopicPartition("t", number) for number in range(4)]
WAIT_MS = 60_000


class Consumer:
    """A client with a session, which sends offsets that have changed."""

    def __init__(self, broker: Broker, version: int = 12, ids: dict[str, UUID] | None = None) -> None:
        self.broker = broker
        self.version = version
        self.ids = ids
        self.session_id = 0
        self.epoch = 0

    async def fetch(
        self,
        offsets: dict[TopicPartition, int] | None = None,
        *,
        forgotten: tuple[int, ...] = (),
        context: dict[str, Any] | None = None,
        **options: Any,
    ) -> FetchResponse:
        asked = request(offsets or {}, session=(self.session_id, self.epoch), ids=self.ids, **options)
        if self.ids:
            for topic in asked.topics:
                topic.topic = ""  # as a request with ids is decoded
        if forgotten:
            asked.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=list(forgotten))]
        response: FetchResponse = await ask(self.broker, 1, self.version, asked, **(context or {}))
        self.session_id = response.session_id
        self.epoch += 1
        return response


def partitions(response: FetchResponse) -> list[int]:
    assert ErrorCode.NONE == response.error_code
    return [data.partition_index for topic in response.responses for data in topic.partitions]


@pytest.fixture
async def consumer(broker: Broker) -> Consumer:
    """A consumer at the end of four empty partitions."""
    await create(broker, partitions=4)
    consumer = Consumer(broker)
    assert [0, 1, 2, 3] == partitions(await consumer.fetch(dict.fromkeys(TPS, 0)))
    assert consumer.session_id
    assert [] == partitions(await consumer.fetch())
    return consumer


async def test_response_has_only_partitions_with_news(broker: Broker, consumer: Consumer) -> None:
    await append(broker, TPS[2])

    assert [2] == partitions(await consumer.fetch())
    assert [] == partitions(await consumer.fetch({TPS[2]: 1}))


async def test_records_come_again_if_the_client_does_not_send_another_offset(
    broker: Broker, consumer: Consumer
) -> None:
    await append(broker, TPS[2])

    assert [2] == partitions(await consumer.fetch())
    assert [2] == partitions(await consumer.fetch())


async def test_partition_with_records_goes_to_the_end(broker: Broker, consumer: Consumer) -> None:
    for tp in TPS:
        await append(broker, tp)

    responses = [await consumer.fetch(max_bytes=1) for _ in range(5)]

    with_records = [
        data.partition_index for each in responses for data in each.responses[0].partitions if data.records
    ]
    assert [0, 1, 2, 3, 0] == with_records


async def test_fetch_reads_only_partitions_that_have_changed() -> None:
    reads: list[list[TopicPartition]] = []

    class Recording(MemoryStorage):
        def try_read(self, requests: Any, **options: Any) -> Any:
            reads.append(list(requests))
            return super().try_read(requests, **options)

    broker = await new_broker(Recording())
    await create(broker, partitions=4)
    consumer = Consumer(broker)
    await consumer.fetch(dict.fromkeys(TPS, 0))
    await consumer.fetch()
    reads.clear()
    await append(broker, TPS[3])
    await consumer.fetch()
    await consumer.fetch({TPS[3]: 1})
    await consumer.fetch()

    assert [[TPS[3]], [TPS[3]]] == [each for each in reads if each]


async def test_long_poll_ends_with_a_record_in_any_partition(
    broker: Broker, consumer: Consumer, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert [1] == partitions(await consumer.fetch(wait_ms=WAIT_MS))

        nursery.start_soon(wait)
        await trio.sleep(1)
        await append(broker, TPS[1])

    assert 1.0 == trio.current_time()


async def test_long_poll_without_news_is_empty(consumer: Consumer, autojump_clock: MockClock) -> None:
    assert [] == partitions(await consumer.fetch(wait_ms=WAIT_MS))
    assert WAIT_MS / 1000 == trio.current_time()


async def test_forgotten_partition_is_not_answered_until_it_is_added_again(
    broker: Broker, consumer: Consumer
) -> None:
    assert [] == partitions(await consumer.fetch(forgotten=(1,)))
    await append(broker, TPS[1])

    assert [] == partitions(await consumer.fetch())
    assert [1] == partitions(await consumer.fetch({TPS[1]: 0}))
    assert [] == partitions(await consumer.fetch({TPS[1]: 1}))


async def test_growth_is_noticed_after_the_watch_of_an_unused_session_has_ended(
    broker: Broker, consumer: Consumer
) -> None:
    broker.fetch_sessions.rest(trio.current_time() + 60)
    await append(broker, TPS[0])

    assert [0] == partitions(await consumer.fetch())


async def test_new_log_start_of_an_idle_partition_is_reported(
    broker: Broker, consumer: Consumer, autojump_clock: MockClock
) -> None:
    await append(broker, TPS[0])
    await consumer.fetch()
    assert [] == partitions(await consumer.fetch({TPS[0]: 1}))
    await broker.log.truncate_before(TPS[0], 1)
    await trio.sleep(31)

    (topic,) = (await consumer.fetch()).responses

    assert [(0, 1)] == [(each.partition_index, each.log_start_offset) for each in topic.partitions]


async def test_errors_are_in_every_response_and_end_the_wait(broker: Broker, consumer: Consumer) -> None:
    missing = TopicPartition("t", 9)
    responses = [await consumer.fetch({missing: 0}), await consumer.fetch(wait_ms=WAIT_MS)]

    for each in responses:
        (data,) = each.responses[0].partitions
        assert (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == (data.partition_index, data.error_code)


async def test_deleted_topic_ends_the_wait(broker: Broker, autojump_clock: MockClock) -> None:
    topic = await create(broker)
    consumer = Consumer(broker, 13, {"t": topic.topic_id})
    await consumer.fetch({T0: 0})
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            (answer,) = (await consumer.fetch(wait_ms=WAIT_MS)).responses
            assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == answer.partitions[0].error_code
            assert topic.topic_id == answer.topic_id

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await broker.delete_topic(topic)

    created = await create(broker)
    (answer,) = (await consumer.fetch(wait_ms=WAIT_MS)).responses
    assert (topic.topic_id, ErrorCode.INCONSISTENT_TOPIC_ID) == (
        answer.topic_id,
        answer.partitions[0].error_code,
    )
    consumer.ids = {"t": created.topic_id}
    (old, new) = (await consumer.fetch({T0: 0})).responses
    assert (topic.topic_id, created.topic_id) == (old.topic_id, new.topic_id)
    assert (ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.NONE) == (
        old.partitions[0].error_code,
        new.partitions[0].error_code,
    )


async def test_earlier_request_that_waits_gets_an_error(
    broker: Broker, consumer: Consumer, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        other = Consumer(broker)
        other.session_id, other.epoch = consumer.session_id, consumer.epoch + 1

        async def wait() -> None:
            response = await consumer.fetch(wait_ms=1000)
            assert ErrorCode.INVALID_FETCH_SESSION_EPOCH == response.error_code
            assert other.session_id == response.session_id

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert [] == partitions(await other.fetch())


async def test_full_request_ends_its_session(broker: Broker, consumer: Consumer) -> None:
    first, consumer.epoch = consumer.session_id, 0

    await consumer.fetch({T0: 0})

    assert 1 == len(broker.fetch_sessions)
    assert first != consumer.session_id


async def test_permission_is_checked_again_when_acls_change() -> None:
    broker = await secured_broker()
    await create(broker, "orders", partitions=2)
    orders = TopicPartition("orders", 0)
    alice = {"principal": "User:alice"}
    consumer = Consumer(broker)
    (refused,) = (await consumer.fetch({orders: 0}, context=alice)).responses
    await create_acls(broker, creation())
    (allowed,) = (await consumer.fetch(context=alice)).responses
    assert [] == partitions(await consumer.fetch(context=alice))
    (other,) = (await consumer.fetch(context={"principal": "User:bob"})).responses

    codes = [each.partitions[0].error_code for each in (refused, allowed, other)]
    assert [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED] == codes
