"""Members of a simulated group whose broker assigns partitions (KIP-848).

A consumer keeps its partitions while it is disconnected, as Kafka's clients do, until the coordinator says that it was
removed. An epoch of the group takes the place of a generation.
"""

from __future__ import annotations

from uuid import UUID

import trio
from attrs import define, field

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import TopicPartition
from korvet.testing.simulation.clients import TOPIC, Member, Talk, check

JOINS, LEAVES = 0, -1  # epochs of requests
# The group has become a classic one if it is not found: it had no consumer left when the member was removed.
REMOVED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


@define(eq=False)
class Consumer(Member):
    """See the module."""

    _owned: dict[TopicPartition, int] = field(factory=dict)  # with the epoch since which it is owned
    _topic_id: UUID = ZERO_UUID

    def __attrs_post_init__(self) -> None:
        self._member_id = f"{self.name}-{self.chance.getrandbits(32):08x}"
        self._generation = JOINS

    def _take_refusal(self, code: ErrorCode) -> None:
        if code in REMOVED:
            self._give_up(JOINS)

    def _give_up(self, epoch: int) -> None:
        """Own nothing from now on."""
        self.positions, self._owned, self._generation = {}, {}, epoch
        self.history.hold(self._actor, self.settings.group, (), 0)

    @property
    def _actor(self) -> str:
        return f"{self.name} ({self._member_id})"

    async def _be_member(self) -> None:
        talk = await self.connect_coordinator(self.settings.group)
        try:
            await self._join(talk)
            unknown = [tp for tp in self._owned if tp not in self.positions]
            self.positions |= await self._committed(talk, unknown)
            await self._consume(talk)
            await self._leave(talk)
        finally:
            await self.close(talk)

    async def _leave(self, talk: Talk) -> None:
        self._give_up(LEAVES)
        await self._beat(talk)

    async def _join(self, talk: Talk) -> None:
        """Send heartbeats until one of them has reported all assigned partitions."""
        while await self._beat(talk):
            pass

    async def _is_stable(self, talk: Talk) -> bool:
        await self._join(talk)
        return True

    async def _beat(self, talk: Talk) -> bool:
        """Send a heartbeat, and take the assignment over. Return True if it was another one."""
        group, epoch, before = (
            self.settings.group,
            self._generation,
            self.history.generation(self.settings.group),
        )
        owned = TopicPartitions(topic_id=self._topic_id, partitions=[tp.partition for tp in self._owned])
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=self._member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=int(self.settings.rebalance_s * 1000),
            subscribed_topic_names=[TOPIC],
            topic_partitions=[owned] if self._owned else [],
        )
        silent_s = min(self.settings.session_s, self.settings.rebalance_s)
        kept_until_s = trio.current_time() + silent_s
        answer = await talk.ask(request)
        check(answer.error_code)
        if epoch == LEAVES:
            return False
        self._generation = answer.member_epoch
        if epoch == JOINS:
            self.history.join(self.name, group, answer.member_epoch, before)
        self.history.hold(self._actor, group, self._owned, kept_until_s)
        if answer.assignment is None:
            return False
        assigned = []
        for each in answer.assignment.topic_partitions:
            self._topic_id = each.topic_id
            assigned += [TopicPartition(TOPIC, number) for number in each.partitions]
        return await self._own(talk, assigned, kept_until_s)

    async def _own(self, talk: Talk, assigned: list[TopicPartition], until_s: float) -> bool:
        """Give up what is not assigned any more, and take what is new. Return True if there was a change."""
        new = [tp for tp in assigned if tp not in self._owned]
        kept = {tp: since for tp, since in self._owned.items() if tp in assigned}
        if not new and len(kept) == len(self._owned):
            return False
        self._owned = kept
        self.positions = {tp: self.positions[tp] for tp in kept if tp in self.positions}
        self.history.assign(self._actor, self.settings.group, self._generation, assigned)
        self.history.hold(self._actor, self.settings.group, assigned, until_s)
        positions = await self._committed(talk, new)
        self.positions |= positions
        self._owned |= dict.fromkeys(new, self._generation)
        return True

    def _owned_since(self, tp: TopicPartition) -> int:
        return self._owned[tp]
