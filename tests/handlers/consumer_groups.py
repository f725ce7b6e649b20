"""A member of a consumer group whose requests go through the handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from attrs import define, field

from korvet.broker.broker import Broker
from korvet.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.handlers.support import ask

REBALANCE_MS = 60_000

Owned = dict[UUID, list[int]]


@define(eq=False)
class ConsumerMember:
    """A client that does what the broker assigns."""

    broker: Broker
    group_id: str = "g"
    instance_id: str | None = None
    member_id: str = field(factory=lambda: str(uuid4()))
    epoch: int = 0
    owned: Owned = field(factory=dict)

    async def send(self, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat with these fields, and keep epoch and assignment of the answer."""
        given = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch}
        request = ConsumerGroupHeartbeatRequest(**(given | fields))
        response = await ask(self.broker, 68, version, request)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        if not response.error_code:
            self.member_id, self.epoch = response.member_id or "", response.member_epoch
            if response.assignment is not None:
                self.owned = {each.topic_id: each.partitions for each in response.assignment.topic_partitions}
        return response

    async def join(
        self, *names: str, regex: str | None = None, version: int = 1, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """Join, or join again."""
        joining = {
            "member_epoch": 0,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": list(names),
            "subscribed_topic_regex": regex,
            "topic_partitions": [],
        }
        return await self.send(version, **(joining | fields))

    async def acknowledge(self) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat that reports the owned partitions."""
        return await self.send(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in self.owned.items()
            ]
        )

    async def leave(self) -> ConsumerGroupHeartbeatResponse:
        """Leave the group."""
        return await self.send(member_epoch=-1)


async def settle(members: Sequence[ConsumerMember]) -> None:
    """Let each member acknowledge three times, by which every member has its target."""
    for _ in range(3):
        for member in members:
            await member.acknowledge()
