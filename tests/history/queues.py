"""Queues on real brokers and stores, and the faults that can happen to them.

Plain Redis consumers work on the queues of the record layout only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from uuid import UUID

import redis
from attrs import frozen
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from redis.sentinel import Sentinel

from conformance.talk import Connection, Ended
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from korvet.protocol.requests import decode_response
from korvet.storage.redis.keys import Keyspace
from korvet.storage.shares import SharePartitionKey
from korvet.storage.values import TopicPartition
from tests.history.faults import (
    Cut,
    CutPrimary,
    CutReplica,
    FailOver,
    Fault,
    KillBroker,
    KillPrimary,
    KillServer,
    PauseBroker,
    PausePrimary,
    PauseReplica,
    PauseSentinel,
    PauseServer,
    RestartBroker,
)
from tests.history.proxy import Proxy
from tests.history.redis_cluster import cluster_faults, slot_moves
from tests.history.shared_load import GROUP, STREAM, TOPIC, SharedLoad
from tests.processes import KorvetProcess
from tests.redis_clusters import RedisCluster
from tests.sentinels import NAME, SentinelSet
from tests.servers import VALKEY, RedisServer, start_server

LOCK_S = 2.0
LIMIT = 10  # of deliveries
START_LIMIT_S = 180.0  # a broker may start while its store is away
RECORD, BATCH = "record", "batch"
GROUP_RESOURCE = 32
SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(int(LOCK_S * 1000)),
    "group.share.delivery.count.limit": str(LIMIT),
}

Connect = Callable[..., redis.Redis]


def settings_of(layout: str, **more: str) -> dict[str, str]:
    """Return the settings of a broker whose topics have that layout."""
    return {**SETTINGS, "storage.layout": layout, **more}


@frozen
class Queue:
    """The empty queue of brokers.

    `connect` connects plain consumers, if there are any, to the server that has the stream. So many replicas confirm
    what they do.
    """

    ports: Sequence[int]
    topic_id: UUID
    connect: Connect | None
    replicas: int

    @property
    def workers(self) -> set[str]:
        """The kinds of workers, as their names begin."""
        return {"member"} if self.connect is None else {"member", "plain"}

    def load(self, seed: int) -> SharedLoad:
        return SharedLoad(self.ports, self.topic_id, self.connect, LOCK_S, seed, self.replicas)

    def unfinished(self) -> object:
        """Return what the group has not finished yet; False or an empty list if there is nothing."""
        if self.connect is None:
            return unfinished(self.ports)
        with self.connect() as client:
            groups = client.xinfo_groups(STREAM)
        return [group for group in groups if (group["pending"], group["lag"]) != (0, 0)]


Place = AbstractContextManager[tuple[Queue, list[Fault]]]


def ask(port: int, request: object, version: int, answer: type[Any]) -> Any:
    """Send one request over a new connection, and return the response."""
    connection = Connection(port)
    try:
        connection.send(request, version)
        frame = connection.receive()
    finally:
        connection.close()
    assert not isinstance(frame, Ended), frame
    return decode_response(answer, version, frame)[1]


def unfinished(ports: Sequence[int]) -> list[Any]:
    """Return the partitions of the group with records that are not finished, as its coordinator knows them."""
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[wanted])
    answers = [ask(port, request, 1, DescribeShareGroupOffsetsResponse).groups[0] for port in ports]
    found = [each for group in answers for topic in group.topics for each in topic.partitions]
    return [each for each in found if each.lag] if found else answers


def begin_earliest(port: int) -> None:
    """Let the group begin with the earliest records."""
    config = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    (response,) = ask(port, request, 1, IncrementalAlterConfigsResponse).responses
    assert not response.error_code, response


def queue_of(ports: Sequence[int], connect: Connect | None = None, replicas: int = 0) -> Queue:
    """Create the topic. Create the Redis group as well, which members adopt, if there are plain consumers."""
    begin_earliest(ports[0])
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[0]}"})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()
    topic_id = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result().topic_id
    if connect is not None:
        with connect() as client:
            client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    number = (topic_id.get_most_significant_bits() & (2**64 - 1)) << 64
    number |= topic_id.get_least_significant_bits() & (2**64 - 1)
    return Queue(ports, UUID(int=number), connect, replicas)


# --- Places ---------------------------------------------------------------------------------------------------


@contextmanager
def durable_server() -> Iterator[RedisServer]:
    """Run a server whose acknowledged writes are on disk."""
    server = start_server(VALKEY, tcp=True, durable=True)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def queue_on_one_server(layout: str, brokers: int = 1) -> Iterator[tuple[Queue, list[Fault]]]:
    """Run brokers on a server whose acknowledged writes are on disk; yield their queue, and what can happen.

    Each broker reaches the server through a proxy. One broker leads the partition.
    """
    with ExitStack() as stack:
        server = stack.enter_context(durable_server())
        faults: list[Fault] = [KillServer(server), PauseServer(server)]
        ports = []
        for _ in range(brokers):
            proxy = stack.enter_context(Proxy(server.port))
            url = f"redis://127.0.0.1:{proxy.port}"
            broker = KorvetProcess(url, settings_of(layout), start_limit_s=START_LIMIT_S)
            stack.enter_context(broker)
            faults += [KillBroker(broker), RestartBroker(broker), Cut(proxy)]
            if brokers > 1:  # another one takes over
                faults.append(PauseBroker(broker))
            ports.append(broker.port)
        yield queue_of(ports, server.client if layout == RECORD else None), faults


@contextmanager
def queue_in_memory() -> Iterator[tuple[Queue, list[Fault]]]:
    """Run a broker that keeps its records in memory; yield its queue, and what can happen that does not end the broker.

    Members reach the broker through a proxy. The producer does not.
    """
    with KorvetProcess(settings=SETTINGS) as broker, Proxy(broker.port) as proxy:
        queue = queue_of([broker.port])
        begun = Queue([proxy.port], queue.topic_id, None, 0)
        yield begun, [PauseBroker(broker), Cut(proxy)]


@contextmanager
def queue_on_sentinels(layout: str, *, promotes: bool = False) -> Iterator[tuple[Queue, list[Fault]]]:
    """Run a broker on a primary with two replicas, which confirm all that workers do; yield the same.

    With `promotes`, each fault promotes a replica.
    """
    settings = settings_of(layout, **{"min.insync.replicas": "2"})
    with (
        SentinelSet(VALKEY, is_proxied=True) as sentinels,
        KorvetProcess(sentinels.url, settings, start_limit_s=START_LIMIT_S) as broker,
    ):
        addresses = [("127.0.0.1", sentinels.port_of(each)) for each in sentinels.sentinels]

        def connect(**options: Any) -> redis.Redis:
            host, port = Sentinel(addresses, socket_timeout=1).discover_master(NAME)
            return redis.Redis(host, port, **options)

        faults: list[Fault] = [FailOver(sentinels), KillPrimary(sentinels)]
        if not promotes:
            faults += [KillBroker(broker), RestartBroker(broker), PausePrimary(sentinels)]
            faults += [CutPrimary(sentinels), CutReplica(sentinels)]
            faults += [PauseReplica(sentinels), PauseSentinel(sentinels)]
        yield (
            queue_of([broker.port], connect if layout == RECORD else None, len(sentinels.replicas)),
            faults,
        )


@contextmanager
def queue_on_redis_cluster(layout: str, *, moves: bool = False) -> Iterator[tuple[Queue, list[Fault]]]:
    """Run a broker on three primaries with a replica each, which confirms all that workers do; yield the same.

    The slots of the stream and of the group's document move, among other faults of the cluster. With `moves`, there are
    no others.
    """
    settings = settings_of(layout, **{"min.insync.replicas": "2"})
    with (
        RedisCluster(VALKEY) as cluster,
        KorvetProcess(cluster.url, settings, start_limit_s=START_LIMIT_S) as broker,
    ):
        queue = queue_of([broker.port], connect_to(cluster) if layout == RECORD else None, 1)
        faults: list[Fault] = [KillBroker(broker), RestartBroker(broker)]
        keys = keys_of(queue, layout)
        yield queue, faults + (slot_moves(cluster, keys) if moves else cluster_faults(cluster, keys))


def keys_of(queue: Queue, layout: str) -> list[bytes]:
    """Return the stream, and in the batch layout the document of the share partition."""
    stream = STREAM.encode()
    if layout == RECORD:
        return [stream]
    key = SharePartitionKey(TopicPartition(TOPIC, 0), queue.topic_id, GROUP)
    return [stream, Keyspace().document("share", str(key))]


def connect_to(cluster: RedisCluster) -> Connect:
    """Return a function that connects to the primary of the stream."""

    def connect(**options: Any) -> redis.Redis:
        try:
            server = cluster.primary_of(STREAM.encode())
        except (LookupError, StopIteration):
            raise redis.ConnectionError("no node has the stream") from None
        return redis.Redis("127.0.0.1", server.port, **options)

    return connect
