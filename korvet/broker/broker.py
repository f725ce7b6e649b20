"""The interface of the broker to its handlers: storage, topics, groups, settings, the clock, and the broker's identity.

Every handler accesses a topic, a group or the cluster through `Broker.topic`, `topic_by_id`, `group` and `cluster`.
These take the operation and can refuse it; at present they allow every client every operation. Node ids, leaders,
leader epochs and coordinators are determined only here, because later there will be several brokers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, IntEnum
from uuid import UUID, uuid4

import trio
from attrs import define, field, frozen

from korvet.broker.counters import Counters
from korvet.broker.limits import AnswerBudget, share_of
from korvet.broker.producer_ids import ProducerIds
from korvet.broker.topics import NewTopic, PlannedTopic, TopicRules, plan, rules_of
from korvet.config import Config
from korvet.groups.coordinator import GroupCoordinator
from korvet.maintenance.compaction import CompactionWorker
from korvet.maintenance.leases import Leases
from korvet.maintenance.retention import RetentionWorker
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    InvalidGroupId,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    PolicyViolation,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer
from korvet.security.session import ANONYMOUS, Session
from korvet.security.users import Users
from korvet.storage.interface import DocumentConflict, Storage, StorageInfo, Topic, TopicPartition
from korvet.tiered.log import Tiers
from korvet.tiered.remote import ColdStore

NO_EPOCH = -1

# Makes the group coordinator of a broker from its storage, settings, clock and leases.
MakeGroups = Callable[[Storage, Config, Callable[[], int], Leases], GroupCoordinator]


class Operation(IntEnum):
    """The operations on a resource (AclOperation), with the protocol's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(Enum):
    """The types of resources. Each value is the set of operations that the type supports."""

    TOPIC = frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    )
    GROUP = frozenset(
        {
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    )
    CLUSTER = frozenset(
        {
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    )


class Disconnect(Exception):  # noqa: N818  it is the answer to a request, not an error
    """Close the connection instead of sending a response, for example after an error of a Produce with acks=0."""


class PendingResponse(ABC):
    """The response to a request whose order relative to later requests is fixed, and whose result is not known yet.

    The server may handle the connection's next request before it waits for the response. It must either wait for the
    response or abandon it.
    """

    @abstractmethod
    async def wait(self) -> object | None:
        """Wait for the result and return the response, or None if the request has no response. May be called once."""

    @abstractmethod
    def abandon(self) -> None:
        """Release what the request holds, since the client will not receive the response."""


@define
class RequestContext:
    """A request's metadata, which a handler reads, and its progress, which a handler reports to the server."""

    version: int
    client_id: str | None = None
    principal: str = ANONYMOUS
    listener_name: str = "PLAINTEXT"
    session: Session | None = None  # None on a listener without SASL
    peer: str = ""
    answer_bytes: int = 0  # bytes of the answer budget that the response's records hold until it is sent
    parked: trio.CancelScope | None = None
    has_parked: bool = False  # True after the handler has waited for records or for members of a group

    @property
    def client_host(self) -> str:
        """The peer's address without its port, as Kafka writes it: /127.0.0.1."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")


@frozen
class Node:
    """A broker as clients see it."""

    node_id: int
    host: str
    port: int
    rack: str | None


@define(eq=False)
class Broker:
    """A broker, created by `open_broker`."""

    _storage: Storage
    config: Config
    cluster_id: str
    advertised: Mapping[str, tuple[str, int]]  # host and port by listener name
    counters: Counters = field(repr=False)
    clock: Callable[[], int] = field(repr=False)  # milliseconds since 1970
    log: Tiers = field(repr=False)
    answers: AnswerBudget = field(repr=False)
    producer_ids: ProducerIds = field(repr=False)
    groups: GroupCoordinator = field(repr=False)
    retention: RetentionWorker = field(repr=False)
    compaction: CompactionWorker = field(repr=False)
    users: Users = field(repr=False)
    _rules: dict[str, tuple[Topic, TopicRules]] = field(factory=dict, repr=False)
    # Leader epochs other than 0, as last returned by the store.
    _leader_epochs: dict[TopicPartition, int] = field(factory=dict, repr=False)
    # Number of partitions of all topics, and the time on the clock of `monotonic` from which they are counted again.
    _partition_count: int = field(default=0, repr=False)
    _is_counted_until: float = field(default=0.0, repr=False)
    _parked: set[trio.CancelScope] = field(factory=set, repr=False)
    _draining: bool = False

    @property
    def store(self) -> StorageInfo:
        """The facts about the broker's storage."""
        return self._storage

    # --- Brokers, leaders, coordinators -----------------------------------------------------------------

    def nodes(self, context: RequestContext) -> Sequence[Node]:
        """Return the live brokers, with the addresses that are advertised on the client's listener."""
        host, port = self.advertised.get(context.listener_name, ("localhost", 9092))
        return [Node(self.config.node_id, host, port, self.config.broker_rack)]

    @property
    def controller_id(self) -> int:
        return self.config.node_id

    def coordinator(self, context: RequestContext, group_id: str) -> Node:  # noqa: ARG002  later it depends on it
        """Return the coordinator of a group."""
        return self.nodes(context)[0]

    def leader_id(self, tp: TopicPartition) -> int:  # noqa: ARG002  as above
        return self.config.node_id

    def leader_epoch(self, tp: TopicPartition) -> int:
        """Return the leader epoch that the store last returned, or 0."""
        # Reading it from the store would cost a round trip.
        return self._leader_epochs.get(tp, 0)

    def check_leader_epoch(self, tp: TopicPartition, claimed: int, actual: int) -> None:
        """Compare a client's leader epoch (KIP-320) with the store's epoch, and cache the store's.

        Raises FencedLeaderEpoch if the client's epoch is older, UnknownLeaderEpoch if it is newer.
        """
        if actual or tp in self._leader_epochs:
            self._leader_epochs[tp] = actual
        if claimed in (NO_EPOCH, actual):
            return
        if claimed < actual:
            raise FencedLeaderEpoch(f"{tp.topic}-{tp.partition} has leader epoch {actual}, not {claimed}")
        raise UnknownLeaderEpoch(f"{tp.topic}-{tp.partition} has leader epoch {actual}, not yet {claimed}")

    # --- Access to resources ----------------------------------------------------------------------------

    def authorize(self, context: RequestContext, operation: Operation, resource: Resource, name: str) -> None:
        """Raise the resource's …AuthorizationFailed if the operation is not allowed. At present all are allowed."""

    def authorized_operations(self, context: RequestContext, resource: Resource, name: str) -> int:  # noqa: ARG002
        """Return the bit field of the operations that the client may do."""
        return sum(1 << operation for operation in resource.value)

    async def topic(self, context: RequestContext, name: str, operation: Operation) -> Topic:
        """Return the topic with that name. Raises UnknownTopicOrPartition."""
        self.authorize(context, operation, Resource.TOPIC, name)
        topic = await self._storage.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    async def topic_by_id(self, context: RequestContext, topic_id: UUID, operation: Operation) -> Topic:
        """Return the topic with that id. Raises UnknownTopicId."""
        topic = await self._storage.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        self.authorize(context, operation, Resource.TOPIC, topic.name)
        return topic

    async def partition(
        self, context: RequestContext, name: str, number: int, operation: Operation
    ) -> TopicPartition:
        """Return an existing partition. Raises UnknownTopicOrPartition."""
        return partition_of(await self.topic(context, name, operation), number)

    async def topics(self, context: RequestContext, operation: Operation) -> Sequence[Topic]:  # noqa: ARG002
        """Return all topics that the client may see, sorted by name."""
        known = await self._storage.topics()
        return [known[name] for name in sorted(known)]

    def group(self, context: RequestContext, group_id: str | None, operation: Operation) -> str:
        """Return the group's id. The empty id is valid, as in Kafka.

        Raises InvalidGroupId for null, and for an id that is too long for a response of some version.
        """
        if group_id is None or is_longer(group_id, LONGEST_ID_BYTES):
            raise InvalidGroupId
        self.authorize(context, operation, Resource.GROUP, group_id)
        return group_id

    def cluster(self, context: RequestContext, operation: Operation) -> None:
        """Authorize an operation on the cluster."""
        self.authorize(context, operation, Resource.CLUSTER, "kafka-cluster")

    # --- Topics -----------------------------------------------------------------------------------------

    def rules(self, topic: Topic) -> TopicRules:
        """Return the topic's rules. They are cached, and computed again after the topic was altered."""
        known = self._rules.get(topic.name)
        if known is None or known[0] is not topic:
            known = self._rules[topic.name] = (topic, rules_of(topic.settings, self.config))
        return known[1]

    async def plan_topic(self, context: RequestContext, new: NewTopic) -> PlannedTopic:
        """Return the topic as it would be created, without creating it. Raises the KafkaError that prevents it."""
        self.authorize(context, Operation.CREATE, Resource.TOPIC, new.name)
        planned = plan(new, self.config, await self._storage.topics())
        await self.check_partitions(planned.partitions)
        return planned

    async def check_partitions(self, additional: int) -> None:
        """Raise PolicyViolation if `additional` partitions would exceed `max.broker.partitions`."""
        limit = self.config.max_broker_partitions
        if time.monotonic() > self._is_counted_until:
            known = await self._storage.topics()
            self._partition_count = sum(topic.partitions for topic in known.values())
            # Counting takes a millisecond for 30,000 topics. Other brokers may pass the limit in the meantime.
            self._is_counted_until = time.monotonic() + 1
        if self._partition_count + additional > limit:
            raise PolicyViolation(
                f"{additional} more partitions would be more than max.broker.partitions={limit} allows."
            )

    async def create_topic(self, planned: PlannedTopic) -> Topic:
        """Create a topic as planned. Raises TopicAlreadyExists if another client was faster."""
        topic = await self._storage.create_topic(planned.name, planned.partitions, planned.settings)
        self.added_partitions(topic.partitions)
        return topic

    async def alter_topic(
        self, topic: Topic, *, partitions: int | None, settings: Mapping[str, str] | None
    ) -> None:
        """Give the topic more partitions or other settings. Raises DocumentConflict; see `Catalogue.alter_topic`."""
        await self._storage.alter_topic(topic, partitions=partitions, settings=settings)

    def added_partitions(self, count: int) -> None:
        """Add newly created partitions to the count."""
        self._partition_count += count

    async def topic_or_new(self, context: RequestContext, name: str) -> Topic:
        """Return the topic with that name. Create it with the broker's defaults if it does not exist."""
        try:
            return await self.topic(context, name, Operation.DESCRIBE)
        except UnknownTopicOrPartition:
            pass
        try:
            return await self.create_topic(await self.plan_topic(context, NewTopic(name)))
        except TopicAlreadyExists:  # another client created it in the meantime
            return await self.topic(context, name, Operation.DESCRIBE)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its cached state. Raises UnknownTopicOrPartition if it does not exist any more."""
        await self._storage.delete_topic(topic)
        await self.log.forget(topic)
        self._partition_count -= topic.partitions
        self._rules.pop(topic.name, None)
        for tp in [tp for tp in self._leader_epochs if tp.topic == topic.name]:
            del self._leader_epochs[tp]

    # --- Waiting ----------------------------------------------------------------------------------------

    @contextmanager
    def parked(self, context: RequestContext, wait_s: float) -> Iterator[None]:
        """Limit the wait inside this block to `wait_s` seconds. A drain or the client's disconnect ends it early.

        The block then ends as if the time were over, and the handler responds with the records available.
        """
        with trio.move_on_after(0 if self._draining else wait_s) as scope:
            context.parked, context.has_parked = scope, True
            self._parked.add(scope)
            try:
                yield
            finally:
                self._parked.discard(scope)
                context.parked = None

    def drain(self) -> None:
        """End all parked waits, and let no new ones begin."""
        self._draining = True
        for scope in self._parked:
            scope.cancel()


def now_in_ms() -> int:
    return time.time_ns() // 1_000_000


def partition_of(topic: Topic, number: int) -> TopicPartition:
    """Return one of the topic's partitions. Raises UnknownTopicOrPartition."""
    if not 0 <= number < topic.partitions:
        raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {number}")
    return TopicPartition(topic.name, number)


def coordinator_error(error: KafkaError) -> KafkaError:
    """Map storage errors to COORDINATOR_NOT_AVAILABLE, which clients retry. Return other errors unchanged."""
    if isinstance(
        error, KafkaStorageError | RequestTimedOut | NotEnoughReplicas | NotEnoughReplicasAfterAppend
    ):
        return CoordinatorNotAvailable(error.message)
    return error


async def open_broker(
    storage: Storage,
    config: Config,
    *,
    advertised: Mapping[str, tuple[str, int]] | None = None,
    counters: Counters | None = None,
    clock: Callable[[], int] = now_in_ms,
    cold: ColdStore | None = None,
    make_groups: MakeGroups = GroupCoordinator,
) -> Broker:
    """Create the broker on a storage, and store a cluster id if there is none.

    `advertised` has host and port by listener name; `cold` is the lake at `lake.url`, if that is set.
    """
    log, leases = Tiers(storage, config, cold), Leases(storage)
    return Broker(
        storage=storage,
        config=config,
        cluster_id=await _cluster_id(storage),
        advertised=advertised or {},
        counters=counters or Counters(),
        clock=clock,
        log=log,
        answers=AnswerBudget(share_of(config.queued_max_response_bytes, config.processes)),
        producer_ids=ProducerIds(storage, clock),
        groups=make_groups(storage, config, clock, leases),
        retention=RetentionWorker(storage, config, leases, log),
        compaction=CompactionWorker(storage, config, leases),
        users=Users(storage),
    )


async def _cluster_id(storage: Storage) -> str:
    """Return the cluster id that all brokers on this store share: 22 characters, as in Kafka."""
    while (document := await storage.load("cluster", "id")) is None:
        cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=")
        try:
            await storage.save("cluster", "id", cluster_id, expected_version=0)
        except DocumentConflict:
            continue
    return document.value.decode()
