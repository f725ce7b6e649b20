"""Three nodes: the answers that depend on the number of brokers, from an Apache Kafka of three nodes and three brokers.

`python -m conformance.clients nodes`. Each observation sends a request to every node, or to those that are not the
right one, and reduces the answers to what has to be equal: numbers of brokers, error codes, agreement between nodes.
Differences that are meant are declared in DECLARED, with their reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from attrs import define, field

from conformance.apache_kafka import ApacheKafka
from conformance.part import Result, Target
from conformance.talk import Connection, newest, received_by
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.sync_group import SyncGroupRequest
from korvet.protocol.record_batch import build_batch
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

NODES = 3
# The newest versions that name topics, as the requests here do.
BY_NAME: dict[type[object], int] = {OffsetCommitRequest: 9, OffsetFetchRequest: 9, ProduceRequest: 12}
READY_LIMIT_S = 60.0
TOPIC, GROUP = "orders", "billing"
KORVET = {"replication.factor.policy": "strict", "group.initial.rebalance.delay.ms": "0"}

# The answers of korvet that differ, each with its reason.
DECLARED: Mapping[str, tuple[object, str]] = {
    "produce at a node that does not lead": ("NONE", "every broker serves every partition"),
    "list offsets at a node that does not lead": ("NONE", "every broker serves every partition"),
    "replicas of a partition": (1, "Redis has the replicas; a partition reports its leader alone"),
    "replicas of a topic with assignments": (
        1,
        "Redis has the replicas; a partition reports its leader alone",
    ),
}


@define
class Cluster:
    """Three running nodes, and a connection to each."""

    ports: Sequence[int]
    connections: list[Connection] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.connections = [Connection(port) for port in self.ports]

    def ask(self, request: object, node: int = 0) -> Any:
        """Send a request to a node, in its newest version that has names of topics, and return the response."""
        connection = self.connections[node]
        version = BY_NAME.get(type(request), newest(type(request)))
        connection.send(request, version)
        return received_by(connection, type(request), version)

    def ask_all(self, request: object) -> list[Any]:
        """Return the responses of all nodes."""
        return [self.ask(request, node) for node in range(NODES)]

    def others(self, port: int) -> list[int]:
        """Return the numbers of the nodes without that port."""
        return [index for index, each in enumerate(self.ports) if each != port]

    def coordinator(self, group: str) -> int:
        """Return the port of a group's coordinator, once there is one."""
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        return int(eventually(lambda: self._coordinator(request), "a coordinator"))

    def _coordinator(self, request: FindCoordinatorRequest) -> int | None:
        (found,) = self.ask(request).coordinators
        return None if found.error_code else int(found.port)

    def leader(self, topic: str, partition: int) -> int:
        """Return the port of a partition's leader, once there is one."""
        return int(eventually(lambda: self._leader(topic, partition), "a leader"))

    def _leader(self, topic: str, partition: int) -> int | None:
        metadata = self.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        ports = {broker.node_id: broker.port for broker in metadata.brokers}
        for each in metadata.topics[0].partitions:
            if each.partition_index == partition and each.leader_id in ports:
                return int(ports[each.leader_id])
        return None


def eventually(find: Callable[[], Any], what: str) -> Any:
    """Poll until `find` returns a value; raise if it takes too long."""
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        if (found := find()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not in time: {what}")


def name_of(code: int) -> str:
    return ErrorCode(code).name


# --- Observations: each returns a value that has to be equal ---------------------------------------------------


def numbers_of_brokers(cluster: Cluster) -> object:
    return [len(answer.brokers) for answer in cluster.ask_all(MetadataRequest(topics=[]))]


def described_brokers(cluster: Cluster) -> object:
    answers = cluster.ask_all(DescribeClusterRequest(include_cluster_authorized_operations=False))
    return [sorted(broker.port for broker in each.brokers) == sorted(cluster.ports) for each in answers]


def controller_is_a_broker(cluster: Cluster) -> object:
    answers = cluster.ask_all(DescribeClusterRequest(include_cluster_authorized_operations=False))
    return [each.controller_id in [broker.broker_id for broker in each.brokers] for each in answers]


def same_cluster_id(cluster: Cluster) -> object:
    return len(
        {
            each.cluster_id
            for each in cluster.ask_all(DescribeClusterRequest(include_cluster_authorized_operations=False))
        }
    )


def creation(cluster: Cluster, name: str, factor: int, **further: Any) -> object:
    topic = CreatableTopic(name=name, num_partitions=6, replication_factor=factor, **further)
    return name_of(cluster.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code)


def creations(cluster: Cluster) -> object:
    return {factor: creation(cluster, f"factor-{factor}", factor) for factor in (-1, 0, 1, 2, 3, 4)}


def assignment(cluster: Cluster, name: str, brokers: Sequence[Sequence[int]]) -> object:
    assigned = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
        for index, ids in enumerate(brokers)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assigned)
    return name_of(cluster.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code)


def assignments(cluster: Cluster) -> object:
    return [
        assignment(cluster, "assigned", [[1], [2], [3]]),
        assignment(cluster, "assigned-unknown", [[9]]),
        assignment(cluster, "assigned-twice", [[1, 1]]),
        assignment(cluster, "assigned-differently", [[1], [2, 3]]),
    ]


def partitions_of(cluster: Cluster, topic: str) -> list[Any]:
    cluster.leader(topic, 0)
    metadata = cluster.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    return list(metadata.topics[0].partitions)


def replicas(cluster: Cluster, topic: str) -> object:
    (number,) = {len(each.replica_nodes) for each in partitions_of(cluster, topic)}
    return number


def leads_of_each_broker(cluster: Cluster) -> object:
    leaders = [each.leader_id for each in partitions_of(cluster, TOPIC)]
    return sorted(leaders.count(broker) for broker in set(leaders))


def more_partitions(cluster: Cluster) -> object:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="factor-1", count=9, assignments=None)],
        timeout_ms=10_000,
        validate_only=False,
    )
    return name_of(cluster.ask(request).results[0].error_code)


def leaders_that_nodes_agree_on(cluster: Cluster) -> object:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])

    def agreed() -> bool | None:
        found = [
            sorted((each.partition_index, each.leader_id) for each in answer.topics[0].partitions)
            for answer in cluster.ask_all(request)
        ]
        return True if found[0] == found[1] == found[2] and found[0] else None

    return eventually(agreed, "agreement about leaders")


def produced_elsewhere(cluster: Cluster) -> object:
    leader = cluster.leader(TOPIC, 0)
    data = PartitionProduceData(index=0, records=[build_batch([(0, 1, None, b"value", ())])])
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    codes = {
        cluster.ask(request, node).responses[0].partition_responses[0].error_code
        for node in cluster.others(leader)
    }
    (code,) = codes
    return name_of(code)


def offsets_listed_elsewhere(cluster: Cluster) -> object:
    leader = cluster.leader(TOPIC, 0)
    asked = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    request = ListOffsetsRequest(replica_id=-1, topics=[asked])
    (code,) = {
        cluster.ask(request, node).topics[0].partitions[0].error_code for node in cluster.others(leader)
    }
    return name_of(code)


def coordinators_that_nodes_agree_on(cluster: Cluster) -> object:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])

    def agreed() -> bool | None:
        found = [answer.coordinators[0] for answer in cluster.ask_all(request)]
        is_known = not any(each.error_code for each in found)
        return True if is_known and len({each.node_id for each in found}) == 1 else None

    return eventually(agreed, "agreement about the coordinator")


def group_requests() -> Mapping[str, tuple[object, Callable[[Any], int]]]:
    """Return a request of each API of groups, and where its response has the error code."""
    commit = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    asked = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    return {
        "JoinGroup": (
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=[protocol],
            ),
            lambda answer: answer.error_code,
        ),
        "SyncGroup": (
            SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=[]),
            lambda answer: answer.error_code,
        ),
        "Heartbeat": (
            HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"),
            lambda answer: answer.error_code,
        ),
        "LeaveGroup": (
            LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id="m")]),
            lambda answer: answer.error_code,
        ),
        "OffsetCommit": (
            OffsetCommitRequest(
                group_id=GROUP, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[commit])]
            ),
            lambda answer: answer.topics[0].partitions[0].error_code,
        ),
        "OffsetFetch": (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])]),
            lambda answer: answer.groups[0].error_code,
        ),
        "DescribeGroups": (DescribeGroupsRequest(groups=[GROUP]), lambda answer: answer.groups[0].error_code),
        "DeleteGroups": (
            DeleteGroupsRequest(groups_names=[GROUP]),
            lambda answer: answer.results[0].error_code,
        ),
    }


def asked_elsewhere(cluster: Cluster, api: str) -> object:
    """Return the error of the nodes that do not coordinate the group."""
    request, code_of = group_requests()[api]
    codes = {code_of(cluster.ask(request, node)) for node in cluster.others(cluster.coordinator(GROUP))}
    return sorted(map(name_of, codes))


OBSERVATIONS: Mapping[str, Callable[[Cluster], object]] = {
    "brokers in the metadata of each node": numbers_of_brokers,
    "brokers that each node describes": described_brokers,
    "the controller is a broker": controller_is_a_broker,
    "ids of the cluster": same_cluster_id,
    "creations with a replication factor": creations,
    "creations with assignments": assignments,
    "a topic of three replicas": partial(creation, name=TOPIC, factor=3),
    "replicas of a partition": partial(replicas, topic=TOPIC),
    "replicas of a topic with assignments": partial(replicas, topic="factor-2"),
    "partitions that each broker leads": leads_of_each_broker,
    "more partitions": more_partitions,
    "nodes agree on leaders": leaders_that_nodes_agree_on,
    "produce at a node that does not lead": produced_elsewhere,
    "list offsets at a node that does not lead": offsets_listed_elsewhere,
    "nodes agree on the coordinator": coordinators_that_nodes_agree_on,
    **{
        f"{api} at a node that does not coordinate the group": partial(asked_elsewhere, api=api)
        for api in group_requests()
    },
}


@contextmanager
def apache_kafka() -> Iterator[Cluster]:
    """Run an Apache Kafka of three brokers, of which the first one is the controller, too."""
    with ExitStack() as stack:
        first = stack.enter_context(ApacheKafka(settings={"group.initial.rebalance.delay.ms": "0"}))
        others = [
            stack.enter_context(ApacheKafka(settings={"node.id": str(number)}, joins=first))
            for number in range(2, NODES + 1)
        ]
        cluster = Cluster([each.port for each in (first, *others)])
        eventually(
            lambda: True if numbers_of_brokers(cluster) == [NODES] * NODES else None, "three Kafka brokers"
        )
        yield cluster


@contextmanager
def korvet() -> Iterator[Cluster]:
    """Run three brokers on one Valkey."""
    with ExitStack() as stack:
        server = start_server(VALKEY)
        stack.callback(server.remove)
        brokers = [
            stack.enter_context(KorvetProcess(storage=server.url, settings=KORVET)) for _ in range(NODES)
        ]
        yield Cluster([each.port for each in brokers])


def observed(cluster: Cluster) -> dict[str, object]:
    """Return all observations, in their order."""
    found: dict[str, object] = {}
    for check, observe in OBSERVATIONS.items():
        try:
            found[check] = observe(cluster)
        except Exception as error:  # noqa: BLE001  one observation must not hide the others
            found[check] = f"{type(error).__name__}: {error}"
    with suppress(OSError):
        for connection in cluster.connections:
            connection.close()
    return found


def run(_targets: Sequence[Target]) -> Iterator[Result]:
    """Compare the observations. A declared difference that is none any more is a fault."""
    with apache_kafka() as nodes:
        kafka = observed(nodes)
    with korvet() as brokers:
        own = observed(brokers)
    for check, expected in kafka.items():
        declared = DECLARED.get(check)
        wanted = expected if declared is None else declared[0]
        fault = "" if own[check] == wanted else f"Apache Kafka: {expected}; korvet: {own[check]}"
        if declared is not None and expected == declared[0]:
            fault = f"declared ({declared[1]}), but Apache Kafka answers the same: {expected}"
        yield Result(check, "three brokers", fault)
