"""A member of a share group whose requests go through the handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

from attrs import define, field

from korvet.broker.broker import Broker
from korvet.broker.group_settings import SHARE_OFFSET_RESET
from korvet.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from korvet.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from korvet.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from korvet.testing.records import acquired_records
from tests.handlers.support import ask

# First and last offset, and the types of an acknowledgement.
Ack = tuple[int, int, Sequence[int]]
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


async def configure(broker: Broker, group_id: str = "g", **settings: str) -> None:
    """Give a group settings, and let it begin with the earliest records."""
    given = {f"share.{name.replace('_', '.')}": value for name, value in settings.items()}
    await broker.group_settings.alter(
        lambda before: {**before, group_id: {SHARE_OFFSET_RESET: "earliest", **given}}
    )


@define(eq=False)
class ShareMember:
    """A client with one connection, which reads partitions of one topic."""

    broker: Broker
    topic_id: UUID
    group_id: str = "g"
    member_id: str = field(factory=lambda: str(uuid4()))
    epoch: int = 0
    session_epoch: int = 0
    at_disconnect: dict[object, Callable[[], None]] = field(factory=dict)
    version: int = 2

    async def beat(self, **fields: Any) -> ShareGroupHeartbeatResponse:
        """Send a heartbeat with these fields, and keep the epoch of the answer."""
        given = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch}
        response = await ask(self.broker, 76, 1, ShareGroupHeartbeatRequest(**(given | fields)))
        assert isinstance(response, ShareGroupHeartbeatResponse)
        if not response.error_code:
            self.epoch = response.member_epoch
        return response

    async def fetch(
        self, *partitions: int, acks: Sequence[Ack] = (), max_wait_ms: int = 0, **fields: Any
    ) -> ShareFetchResponse:
        """Fetch from partitions that are new in the session, and acknowledge records of the first one."""
        topics = [FetchTopic(topic_id=self.topic_id, partitions=self._partitions(partitions, acks))]
        given = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "share_session_epoch": self.session_epoch,
            "max_wait_ms": max_wait_ms,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 500,
            "batch_size": 500,
            "topics": topics if topics[0].partitions else [],
            "forgotten_topics_data": [],
        }
        request = ShareFetchRequest(**(given | fields))
        response = await ask(self.broker, 78, self.version, request, at_disconnect=self.at_disconnect)
        assert isinstance(response, ShareFetchResponse)
        if not response.error_code:
            self.session_epoch = request.share_session_epoch + 1
        return response

    async def acquired(self, *partitions: int, **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch, and return first offset, last offset and delivery count of what was acquired of one partition."""
        response = await self.fetch(*partitions, **fields)
        found = [each for topic in response.responses for each in topic.partitions if not each.error_code]
        assert len(found) <= 1
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for data in found
            for each in data.acquired_records
        ]

    async def acknowledge(self, *acks: Ack, partition: int = 0, **fields: Any) -> int:
        """Send ShareAcknowledge, and return the error code of the request or of the partition."""
        batches = _batches(acks)
        topic = AcknowledgeTopic(
            topic_id=self.topic_id,
            partitions=[AcknowledgePartition(partition_index=partition, acknowledgement_batches=batches)],
        )
        given = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "share_session_epoch": self.session_epoch,
            "topics": [topic] if acks else [],
        }
        request = ShareAcknowledgeRequest(**(given | fields))
        response = await ask(self.broker, 79, self.version, request)
        assert isinstance(response, ShareAcknowledgeResponse)
        if response.error_code:
            return int(response.error_code)
        self.session_epoch = request.share_session_epoch + 1
        return next((int(each.error_code) for t in response.responses for each in t.partitions), 0)

    def disconnect(self) -> None:
        """End the connection."""
        for call in self.at_disconnect.values():
            call()

    def _partitions(self, partitions: Sequence[int], acks: Sequence[Ack]) -> list[FetchPartition]:
        numbers = partitions or ((0,) if acks else ())
        return [
            FetchPartition(
                partition_index=number, acknowledgement_batches=_batches(acks) if not index else []
            )
            for index, number in enumerate(numbers)
        ]


def _batches(acks: Sequence[Ack]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acks
    ]


def values(response: ShareFetchResponse) -> list[bytes | None]:
    """Return the values of the acquired records."""
    return [
        value
        for topic in response.responses
        for data in topic.partitions
        for _, _, value in acquired_records(data)
    ]
