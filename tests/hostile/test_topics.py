"""Many partitions: how many a client can create, and the time and memory that describing them costs."""

from __future__ import annotations

import pytest
import trio

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from tests.hostile.measuring import client_of, highest_bytes, neighbour, reset_highest
from tests.processes import KorvetProcess
from tests.talk import connect, serving

ALL_TOPICS = MetadataRequest(topics=None)


def topics(count: int, partitions: int) -> CreateTopicsRequest:
    wanted = [
        CreatableTopic(name=f"t{partitions}-{number}", num_partitions=partitions, replication_factor=1)
        for number in range(count)
    ]
    return CreateTopicsRequest(topics=wanted, timeout_ms=30_000)


async def test_create_topics_is_limited_to_10_000_partitions() -> None:
    async with serving() as server, connect(server) as client:
        answer = await client.ask(topics(300, 10_000), 5)

        assert {ErrorCode.POLICY_VIOLATION} == {each.error_code for each in answer.topics}
        assert not await server.broker._storage.topics()


@pytest.mark.slow
async def test_describing_200_000_partitions_does_not_delay_other_clients() -> None:
    """Before: 2 to 3 s in which no other client was answered, and 230 MB."""
    with KorvetProcess() as broker, trio.fail_after(100):
        async with client_of(broker) as client, client_of(broker) as other:
            codes = [
                (await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5))
                .topics[0]
                .error_code
                for topic in topics(21, 10_000).topics
            ]
            assert codes == [ErrorCode.NONE] * 20 + [ErrorCode.POLICY_VIOLATION]
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)
            async with neighbour(other) as waits:
                for version in (1, 12):
                    await client.send(client.frame_of(ALL_TOPICS, version))
                    size = len(await client.receive())
            took = highest_bytes(broker.pid) - before

    assert size > 5_000_000
    assert waits.longest_s < 3
    assert took < 64_000_000


@pytest.mark.slow
async def test_clients_that_do_not_read_descriptions_take_bounded_memory() -> None:
    settings = {
        "queued.max.response.bytes": "20000000",
        "request.timeout.ms": "1000",
        "socket.send.buffer.bytes": "65536",
    }
    with KorvetProcess(settings=settings) as broker, trio.fail_after(100):
        async with client_of(broker) as client, client_of(broker) as other:
            for topic in topics(20, 10_000).topics:
                await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)
            streams = [await trio.open_tcp_stream(broker.host, broker.port) for _ in range(12)]
            for stream in streams:
                await stream.send_all(client.frame_of(ALL_TOPICS, 12))
            async with neighbour(other):
                await client.ask(ALL_TOPICS, 12)
            took = highest_bytes(broker.pid) - before
            for stream in streams:
                await stream.aclose()

    assert took < 64_000_000
