"""The requests of the reference pages, over a socket, to a broker on any storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from attrs import define
from redis import Redis

from korvet.protocol.messages import share_fetch
from korvet.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from korvet.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from korvet.protocol.record_batch import RecordBatch, parse_batches
from korvet.server.server import Server
from korvet.storage.interface import Storage, TopicPartition
from korvet.testing.records import Record, StoredRecord, batch, records_in
from tests.handlers.support import produce_request
from tests.reference.places import Place
from tests.talk import Client, connect, joined, serving

ORDERS = TopicPartition("orders", 0)
STREAM = "korvet:orders:0"
GROUP = "my-group"
LATEST, EARLIEST = -1, -2
BITS = 10  # offset.sequence.bits by default


@define
class Conversation:
    """A connection to a broker, and for inspection the Redis server that it stores in."""

    client: Client
    server: Server
    place: Place
    redis: Redis | None = None

    async def create(self, name: str = "orders", partitions: int = 1, **settings: str) -> None:
        """Create a topic with the layout and mapping of the place."""
        chosen = {"storage.layout": self.place.layout, "offset.mapping": self.place.mapping}
        chosen |= {key.replace("_", "."): value for key, value in settings.items()}
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in chosen.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        (created,) = (await self.client.ask(CreateTopicsRequest(topics=[topic]), 5)).topics
        assert 0 == created.error_code, created

    async def produce(
        self,
        *records: Record,
        tp: TopicPartition = ORDERS,
        acks: int = -1,
        produced: RecordBatch | None = None,
    ) -> Any:
        """Produce a batch, and return the partition's response."""
        data = bytes((produced or batch(records)).buffer)
        response = await self.client.ask(produce_request({tp: data}, acks=acks), 9)
        return response.responses[0].partition_responses[0]

    async def list_offsets(
        self, timestamp: int, *, tp: TopicPartition = ORDERS, isolation_level: int = 0
    ) -> tuple[int, int, int]:
        """Return error code, offset and timestamp of the response."""
        response = await self.client.ask(list_offsets({tp: timestamp}, isolation_level), 7)
        found = response.topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    async def offset(self, timestamp: int) -> int:
        """Return the offset of a ListOffsets that succeeds."""
        error_code, offset, _ = await self.list_offsets(timestamp)
        assert 0 == error_code
        return offset

    async def fetch(self, offset: int) -> tuple[int, list[StoredRecord]]:
        """Return the error code, and the records from `offset` on."""
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**24)
        topics = [FetchTopic(topic="orders", partitions=[partition])]
        response = await self.client.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), 12)
        found = response.responses[0].partitions[0]
        return found.error_code, records_in(parse_batches(joined(found.records)), offset)

    async def share_fetch(self, topic_id: UUID, epoch: int) -> list[int]:
        """Fetch as the member of a share group; return the acquired offsets."""
        partition = share_fetch.FetchPartition(partition_index=0, acknowledgement_batches=[])
        topics = [share_fetch.FetchTopic(topic_id=topic_id, partitions=[partition])]
        request = share_fetch.ShareFetchRequest(
            group_id="workers",
            member_id="member",
            share_session_epoch=epoch,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=2**24,
            max_records=100,
            batch_size=100,
            topics=topics if epoch == 0 else [],
            forgotten_topics_data=[],
        )
        response = await self.client.ask(request, 2)
        found = [
            each
            for topic in response.responses
            for data in topic.partitions
            for each in data.acquired_records
        ]
        return [offset for run in found for offset in range(run.first_offset, run.last_offset + 1)]

    async def share_acknowledge(self, topic_id: UUID, epoch: int, offset: int, kind: int) -> None:
        """Acknowledge a record as the member."""
        batch = share_fetch.AcknowledgementBatch(
            first_offset=offset, last_offset=offset, acknowledge_types=[kind]
        )
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        request = ShareAcknowledgeRequest(
            group_id="workers",
            member_id="member",
            share_session_epoch=epoch,
            topics=[AcknowledgeTopic(topic_id=topic_id, partitions=[partition])],
        )
        response = await self.client.ask(request, 2)
        assert 0 == response.responses[0].partitions[0].error_code, response

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        generation_id: int = -1,
        member_id: str = "",
    ) -> list[int]:
        """Return the error codes of the response."""
        topics = [
            OffsetCommitRequestTopic(
                name=tp.topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=tp.partition, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for tp, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=GROUP, generation_id_or_member_epoch=generation_id, member_id=member_id, topics=topics
        )
        response = await self.client.ask(request, 8)
        return [topic.partitions[0].error_code for topic in response.topics]

    async def committed(self, tp: TopicPartition = ORDERS) -> int:
        """Return the committed offset of one partition."""
        ((_, ((_, offset, *_),)),) = await self.offsets_fetched({tp.topic: [tp.partition]}, version=8)
        return offset

    async def offsets_fetched(
        self, topics: Mapping[str, Sequence[int]], *, version: int
    ) -> list[tuple[str, list[tuple[int, int, int, str]]]]:
        """Return partition, committed offset, leader epoch and metadata, by topic."""
        response = await self.client.ask(offset_fetch(topics, version), version)
        group = response.groups[0] if version >= 8 else response
        assert 0 == group.error_code
        return [
            (topic.name, [_position(partition, version) for partition in topic.partitions])
            for topic in group.topics
        ]

    # --- Other programs on the same Redis ----------------------------------------------------------------

    @property
    def plain(self) -> Redis:
        """A client without korvet."""
        assert self.redis is not None
        return self.redis

    def add(self, entry_id: str, timestamp: int, *, partition: int = 0) -> None:
        """Add an entry as the reference pages show it."""
        fields = {"key": "order-123", "value": "...", "timestamp": str(timestamp)}
        self.plain.xadd(f"korvet:orders:{partition}", fields, id=entry_id)  # type: ignore[arg-type]

    def group(self) -> dict[str, Any]:
        """Return the group's entry of XINFO GROUPS."""
        (info,) = self.plain.xinfo_groups(STREAM)
        found: dict[str, Any] = info
        return found


def list_offsets(timestamps: Mapping[TopicPartition, int], isolation_level: int = 0) -> ListOffsetsRequest:
    partitions = [
        ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
        for tp, timestamp in timestamps.items()
    ]
    name = next(iter(timestamps)).topic
    topics = [ListOffsetsTopic(name=name, partitions=partitions)]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)


def offset_fetch(topics: Mapping[str, Sequence[int]], version: int) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(
            group_id=GROUP,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=list(numbers))
                for name, numbers in topics.items()
            ],
        )
    asked = [
        OffsetFetchRequestTopics(name=name, partition_indexes=list(numbers))
        for name, numbers in topics.items()
    ]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=asked)])


def _position(partition: Any, version: int) -> tuple[int, int, int, str]:
    assert 0 == partition.error_code
    return (
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch if version >= 5 else -1,
        partition.metadata,
    )


@asynccontextmanager
async def conversing(
    storage: Storage, place: Place, client: Redis | None, **settings: Any
) -> AsyncIterator[Conversation]:
    """Serve `storage` and connect to it; groups rebalance without delay."""
    async with (
        serving(storage=storage, group_initial_rebalance_delay_ms=0, **settings) as server,
        connect(server) as connection,
    ):
        yield Conversation(connection, server, place, client)
