"""Consumers that begin at the end of the log, and records that are produced just after their first ListOffsets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import AIOKafkaConnection

from tests.clients.aio import run
from tests.clients.conftest import STORAGES
from tests.processes import KorvetProcess

TOPICS = 12
PRODUCED = 3
LIST_OFFSETS = 2  # its API key


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return the event that is set when a consumer has written a ListOffsets request to its connection."""
    event = asyncio.Event()
    send = AIOKafkaConnection.send

    def observed(self: AIOKafkaConnection, request: Any, *args: Any, **kwargs: Any) -> Any:
        answer = send(self, request, *args, **kwargs)
        if getattr(request, "API_KEY", None) == LIST_OFFSETS:
            event.set()
        return answer

    monkeypatch.setattr(AIOKafkaConnection, "send", observed)
    return event


# With several brokers, the request in between may go to another broker than the leader.
@pytest.mark.parametrize("broker", STORAGES[:2], indirect=True, ids=lambda storage: storage.id)
def test_consumers_at_latest_receive_what_is_produced_after_their_first_request(
    broker: KorvetProcess, topic: str, listed: asyncio.Event
) -> None:
    servers = broker.bootstrap_servers

    async def receives(producer: AIOKafkaProducer, name: str) -> int:
        await producer.partitions_for(name)  # creates the topic
        listed.clear()
        async with AIOKafkaConsumer(name, bootstrap_servers=servers, auto_offset_reset="latest") as consumer:
            await listed.wait()
            # The broker answers the request that follows after it has received the first one.
            await producer.client.fetch_all_metadata()
            for number in range(PRODUCED):
                await producer.send_and_wait(name, b"%d" % number)
            first = await consumer.getone()
            return int(first.value)

    async def firsts() -> list[int]:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            return [await receives(producer, f"{topic}-{number}") for number in range(TOPICS)]

    assert [0] * TOPICS == run(firsts())
