"""DescribeQuorum: v0-2.

Behaviour: what Kafka's tools ask about `__cluster_metadata`. There is no log of metadata: the store has it, and all
brokers read it. The response describes that in Kafka's terms: the controller leads and votes, the other living brokers
observe, and none is behind.

Versions: times from v1, all of them the present. From v2 the ids of directories, made from the ids of the cluster and
the broker, and the addresses of the brokers on the client's listener.

Errors: UNKNOWN_TOPIC_OR_PARTITION for everything but partition 0 of that topic.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from korvet.security.acls import Operation

METADATA = "__cluster_metadata"
# The controller is not elected, so there are no epochs.
LEADER_EPOCH = 1
# Kafka's log has records from its beginning on; clients may rely on it.
END_OFFSET = 1
# The version from which a response has nodes, and ids of directories.
NODES_SINCE = 2
NAMESPACE = UUID("5c1d3e0a-7f5b-4b39-9d0e-6b0d0c1f3a52")


async def handle(
    broker: Broker, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
    except KafkaError as error:
        return DescribeQuorumResponse(
            error_code=error.error_code, error_message=error.message or None, topics=[]
        )
    asked = [
        (topic.topic_name, [each.partition_index for each in topic.partitions]) for topic in request.topics
    ]
    if asked != [(METADATA, [0])]:
        return DescribeQuorumResponse(topics=[_unknown(*each) for each in asked])
    return DescribeQuorumResponse(
        topics=[TopicData(topic_name=METADATA, partitions=[_quorum(broker, context.version)])],
        nodes=_nodes(broker, context) if context.version >= NODES_SINCE else [],
    )


def _unknown(name: str, partitions: list[int]) -> TopicData:
    return TopicData(
        topic_name=name,
        partitions=[
            PartitionData(
                partition_index=number,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="This server does not host this topic-partition.",
                leader_id=0,
                leader_epoch=0,
                high_watermark=0,
                current_voters=[],
                observers=[],
            )
            for number in partitions
        ],
    )


def _quorum(broker: Broker, version: int) -> PartitionData:
    leader_id, now_ms = broker.controller_id, broker.clock()

    def state(node_id: int) -> ReplicaState:
        found = ReplicaState(
            replica_id=node_id,
            log_end_offset=END_OFFSET,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        if version >= NODES_SINCE:
            found.replica_directory_id = uuid5(NAMESPACE, f"{broker.cluster_id} {node_id}")
        return found

    return PartitionData(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=LEADER_EPOCH,
        high_watermark=END_OFFSET,
        current_voters=[state(leader_id)],
        observers=[state(node_id) for node_id in broker.membership.living if node_id != leader_id],
    )


def _nodes(broker: Broker, context: RequestContext) -> list[Node]:
    """Return the controller alone, since only voters are nodes of a quorum."""
    return [
        Node(
            node_id=node.node_id,
            listeners=[Listener(name=context.listener_name, host=node.host, port=node.port)],
        )
        for node in broker.nodes(context)
        if node.node_id == broker.controller_id
    ]
