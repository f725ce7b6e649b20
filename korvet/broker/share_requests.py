"""Partitions in the requests of share consumers: their topics, leaders and acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from korvet.broker.broker import Broker, Node, partition_of
from korvet.broker.context import RequestContext
from korvet.broker.sharing import Acknowledgements
from korvet.protocol.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    detached,
)
from korvet.protocol.messages.share_fetch import LeaderIdAndEpoch, NodeEndpoint
from korvet.security.acls import Operation, ResourceType
from korvet.share.sessions import Partition, ShareSession
from korvet.storage.interface import TopicPartition
from korvet.storage.shares import SharePartitionKey

NO_LEADER = LeaderIdAndEpoch()


@define(eq=False)
class ShareRequest:
    """A request of a member, and what was looked up for it."""

    broker: Broker
    context: RequestContext
    session: ShareSession
    _tps: dict[Partition, TopicPartition] = field(factory=dict)
    _found: dict[Partition, SharePartitionKey | KafkaError] = field(factory=dict)

    async def find(self, partition: Partition) -> SharePartitionKey:
        """Return the share partition. Raises UnknownTopicId, TopicAuthorizationFailed, NotLeaderOrFollower, …"""
        found = self._found.get(partition)
        if found is None:
            try:
                found = await self._look_up(partition)
            except KafkaError as error:
                found = detached(error)
            self._found[partition] = found
        if isinstance(found, KafkaError):
            raise found
        return found

    async def _look_up(self, partition: Partition) -> SharePartitionKey:
        topic = await self.broker.find_topic_by_id(partition.topic_id)
        self.broker.authorize(self.context, Operation.READ, ResourceType.TOPIC, topic.name)
        tp = self._tps[partition] = partition_of(topic, partition.number)
        self.broker.check_leads(self.context, tp)
        return SharePartitionKey(tp, partition.topic_id, self.session.key.group_id)

    async def acknowledge(self, given: Acknowledgements) -> dict[Partition, KafkaError | None]:
        """Acknowledge records, partition by partition. Return the error of each."""
        outcomes: dict[Partition, KafkaError | None] = {}
        for partition, batches in given.items():
            try:
                if isinstance(batches, KafkaError):
                    raise batches
                key = await self.find(partition)
                await self.broker.share.partitions.acknowledge(key, self.session.key.member_id, batches)
                outcomes[partition] = None
            except KafkaError as error:
                outcomes[partition] = share_error(error)
        return outcomes

    def leader(self, partition: Partition, error_code: ErrorCode) -> LeaderIdAndEpoch:
        """Return the present leader of a partition, if the error is that this broker is not."""
        tp = self._tps.get(partition)
        if error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER or tp is None:
            return NO_LEADER
        return LeaderIdAndEpoch(
            leader_id=self.broker.leader_id(self.context, tp), leader_epoch=self.broker.leader_epoch
        )

    def endpoints(self, leaders: Iterable[LeaderIdAndEpoch]) -> list[NodeEndpoint]:
        """Return the addresses of leaders."""
        ids = {each.leader_id for each in leaders if each is not NO_LEADER}
        if not ids:
            return []
        return [_endpoint(node) for node in self.broker.nodes(self.context) if node.node_id in ids]


def share_error(error: KafkaError) -> KafkaError:
    """Return an error of a share partition as consumers know it.

    They repeat their request after KAFKA_STORAGE_ERROR. The errors for too few replicas are those of producers:
    librdkafka raises them, and the Java client fails at each error that is not among those of a consumer.
    """
    if isinstance(error, (NotEnoughReplicas, NotEnoughReplicasAfterAppend)):
        return KafkaStorageError(error.message)
    return detached(error)


def _endpoint(node: Node) -> NodeEndpoint:
    return NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
