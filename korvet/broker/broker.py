"""The interface of the broker to its handlers: storage, topics, groups, settings, the clock, and the broker's identity.

Every handler accesses a topic, a group or the cluster through `Broker.topic`, `topic_by_id`, `group` and `cluster`.
These take the operation and refuse it if the authorizer does (`korvet.broker.authorization`). Handlers learn the living
brokers, leaders, leader epochs and coordinators only here; `korvet.cluster` determines them.
"""

from __future__ import annotations

import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

import trio
from attrs import define, evolve, field, frozen

from korvet.broker.authorization import ERRORS, Authorization, open_authorization
from korvet.broker.context import RequestContext
from korvet.broker.counters import Counters
from korvet.broker.dynamic_settings import CLUSTER, BrokerSettings, BrokerSettingsStore
from korvet.broker.fetch_sessions import PARTITIONS_AT_MOST, FetchSessions
from korvet.broker.group_settings import GroupSettings, GroupSettingsStore
from korvet.broker.limits import AnswerBudget, share_of
from korvet.broker.producer_ids import ProducerIds
from korvet.broker.quotas import ClientQuotas
from korvet.broker.sharing import Sharing, open_sharing
from korvet.broker.storage_defaults import storage_defaults
from korvet.broker.topics import NewTopic, PlannedTopic, TopicRules, plan, rules_of
from korvet.cluster.membership import Membership
from korvet.cluster.registration import FIRST_ID, Registration
from korvet.config import ASSIGNED, Config, ConfigError
from korvet.config.dynamic import with_dynamic
from korvet.groups.coordinator import GroupCoordinator
from korvet.maintenance.compaction import CompactionWorker
from korvet.maintenance.hanging import HangingTransactions
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
    NotLeaderOrFollower,
    PolicyViolation,
    RequestTimedOut,
    SecurityDisabled,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer
from korvet.security.acl_store import AclStore
from korvet.security.acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from korvet.security.users import Users
from korvet.storage.interface import (
    DocumentConflict,
    Measurements,
    Storage,
    StorageInfo,
    Topic,
    TopicPartition,
)
from korvet.tiered.log import Tiers
from korvet.tiered.remote import RemoteStore
from korvet.transactions.coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

NO_EPOCH = -1
CLUSTER_ID = ("cluster", "id")  # of the document

# Makes the group coordinator of a broker from its storage, settings, clock and membership.
MakeGroups = Callable[[Storage, Config, Callable[[], int], Membership], GroupCoordinator]


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
    membership: Membership = field(repr=False)
    counters: Counters = field(repr=False)
    clock: Callable[[], int] = field(repr=False)  # milliseconds since 1970
    # None if every client may do everything
    authorization: Authorization | None
    log: Tiers = field(repr=False)
    answers: AnswerBudget = field(repr=False)
    producer_ids: ProducerIds = field(repr=False)
    groups: GroupCoordinator = field(repr=False)
    transactions: TransactionCoordinator = field(repr=False)
    retention: RetentionWorker = field(repr=False)
    compaction: CompactionWorker = field(repr=False)
    hanging: HangingTransactions = field(repr=False)
    users: Users = field(repr=False)
    quotas: ClientQuotas = field(repr=False)
    dynamic: BrokerSettingsStore = field(init=False, repr=False)
    fetch_sessions: FetchSessions = field(init=False, repr=False)
    group_settings: GroupSettingsStore = field(init=False, repr=False)
    share: Sharing = field(init=False, repr=False)
    # Called with the configuration whenever its dynamic values have changed.
    reconfigured: list[Callable[[Config], None]] = field(factory=list, repr=False)
    _rules: dict[str, tuple[Topic, TopicRules]] = field(factory=dict, repr=False)
    # Number of partitions of all topics, and the time on the clock of `monotonic` from which they are counted again.
    _partition_count: int = field(default=0, repr=False)
    _is_counted_until: float = field(default=0.0, repr=False)
    _parked: set[trio.CancelScope] = field(factory=set, repr=False)
    _draining: bool = False

    def __attrs_post_init__(self) -> None:
        self.dynamic = BrokerSettingsStore(self._storage, self._reconfigure)
        slots, processes = self.config.max_incremental_fetch_session_cache_slots, self.config.processes
        self.fetch_sessions = FetchSessions(
            share_of(slots, processes), share_of(PARTITIONS_AT_MOST, processes)
        )
        self.group_settings = GroupSettingsStore(self._storage, self._use_group_settings)
        self.share = open_sharing(self._storage, self.config, self.groups)

    def _use_group_settings(self, values: GroupSettings) -> None:
        self.groups.settings = values

    def _reconfigure(self, values: BrokerSettings) -> None:
        """Apply the dynamic settings of this broker. Keep the previous ones if they contradict the others."""
        of_cluster, of_broker = (values.get(name, {}) for name in (CLUSTER, str(self.config.node_id)))
        try:
            config = with_dynamic(self.config.static, of_cluster, of_broker)
        except (ConfigError, ValueError) as error:
            logger.error("the dynamic settings of brokers are not applied: %(error)s", {"error": error})  # noqa: TRY400
            return
        self.config = self.retention.config = self.compaction.config = self.hanging.config = config
        self._rules.clear()
        self._storage.configure(storage_defaults(config))
        for call in self.reconfigured:
            call(config)

    @property
    def store(self) -> StorageInfo:
        """The facts about the broker's storage."""
        return self._storage

    async def check_store(self) -> None:
        """Read from the store once. Raises KafkaError if it does not answer."""
        await self._storage.load(*CLUSTER_ID)

    async def read_measurements(self) -> Measurements:
        """Return values for metrics that the store itself has. Raises KafkaError."""
        return await self._storage.read_measurements()

    # --- Brokers, leaders, coordinators -----------------------------------------------------------------

    def nodes(self, context: RequestContext) -> Sequence[Node]:
        """Return the living brokers, with the addresses that are advertised on the client's listener."""
        listener = context.listener_name
        return [_node(each, listener) for each in self.membership.brokers_on(listener)]

    @property
    def advertised_listeners(self) -> str:
        """The addresses that clients connect to, in the notation of the setting."""
        addresses = self.membership.own.addresses
        return ",".join(f"{name}://{host}:{port}" for name, (host, port) in addresses.items())

    @property
    def log_dir(self) -> str:
        """The name of the storage as a log directory: a path without blanks, login and options."""
        return log_dir_of(self.config.storage)

    @property
    def controller_id(self) -> int:
        return self.membership.controller_id

    def coordinator(self, context: RequestContext, group_id: str) -> Node:
        """Return the coordinator of a group. Raises CoordinatorNotAvailable if it lacks the client's listener."""
        found = self.membership.coordinator(group_id)
        if context.listener_name not in found.addresses:
            raise CoordinatorNotAvailable(f"broker {found.node_id} has no listener {context.listener_name}")
        return _node(found, context.listener_name)

    def leader_id(self, context: RequestContext, tp: TopicPartition) -> int:
        """Return the node id of a partition's leader."""
        return self.membership.leader_id(tp, context.listener_name)

    def check_leads(self, context: RequestContext, tp: TopicPartition) -> None:
        """Raise NotLeaderOrFollower if another broker leads a partition."""
        if self.leader_id(context, tp) != self.membership.node_id:
            raise NotLeaderOrFollower(f"another broker leads {tp.topic}-{tp.partition}")

    def replicas(self, leader_id: int, brokers: Iterable[int]) -> list[int]:
        """Return the replicas to report for a partition, its leader first. None but the leader is one by default."""
        if self.config.replication_factor_policy != "brokers":
            return [leader_id]
        return [leader_id, *(node_id for node_id in brokers if node_id != leader_id)]

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of all partitions. Clients ignore metadata with a lower one than they have seen."""
        return self._storage.newest_leader_epoch

    def check_leader_epoch(self, tp: TopicPartition, claimed: int, actual: int) -> None:
        """Compare a client's leader epoch (KIP-320) with that of the partition's newest records, `actual`.

        Raises FencedLeaderEpoch if the client's epoch is older, UnknownLeaderEpoch if no broker can have returned it.
        """
        newest = max(actual, self.leader_epoch)
        if claimed == NO_EPOCH or actual <= claimed <= newest:
            return
        if claimed < actual:
            raise FencedLeaderEpoch(f"{tp.topic}-{tp.partition} has leader epoch {actual}, not {claimed}")
        raise UnknownLeaderEpoch(f"{tp.topic}-{tp.partition} has leader epoch {newest}, not yet {claimed}")

    # --- Access to resources ----------------------------------------------------------------------------

    def authorize(
        self, context: RequestContext, operation: Operation, resource_type: ResourceType, name: str
    ) -> None:
        """Raise the resource's …AuthorizationFailed if the operation is not allowed."""
        if self.authorization is not None and not self.authorization.allows(
            context, operation, resource_type, name
        ):
            raise ERRORS[resource_type]

    def may(
        self, context: RequestContext, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return True if the operation is allowed. A denial is not logged, since it refuses nothing by itself."""
        return self.authorization is None or self.authorization.allows(
            context, operation, resource_type, name, is_selection=True
        )

    def may_on_cluster(self, context: RequestContext, operation: Operation) -> bool:
        """Return True if the operation on the cluster is allowed, which stands for operations on its resources."""
        return self.may(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def authorized_operations(self, context: RequestContext, resource_type: ResourceType, name: str) -> int:
        """Return the bit field of the operations that the client may do."""
        if self.authorization is None:
            return sum(1 << operation for operation in SUPPORTED[resource_type])
        return self.authorization.operations(context, resource_type, name)

    def may_on_any(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if the operation is allowed on at least one resource of that type."""
        return self.authorization is None or self.authorization.allows_any(context, operation, resource_type)

    def cluster_operations(self, context: RequestContext) -> int:
        """Return the bit field of the operations on the cluster, or 0 for a client that may not describe it."""
        try:
            self.cluster(context, Operation.DESCRIBE)
        except KafkaError:
            return 0
        return self.authorized_operations(context, ResourceType.CLUSTER, CLUSTER_NAME)

    def acls(self) -> AclStore:
        """Return the stored ACLs. Raises SecurityDisabled without an authorizer."""
        if self.authorization is None:
            raise SecurityDisabled("No Authorizer is configured.")
        return self.authorization.acls

    async def topic(self, context: RequestContext, name: str, operation: Operation) -> Topic:
        """Return the topic with that name. Raises TopicAuthorizationFailed, UnknownTopicOrPartition."""
        self.authorize(context, operation, ResourceType.TOPIC, name)
        return await self.find_topic(name)

    async def find_topic(self, name: str) -> Topic:
        """Return the topic with that name for a client that is authorized. Raises UnknownTopicOrPartition."""
        topic = await self._storage.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    async def topic_by_id(self, context: RequestContext, topic_id: UUID, operation: Operation) -> Topic:
        """Return the topic with that id. Raises UnknownTopicId, TopicAuthorizationFailed."""
        topic = await self.find_topic_by_id(topic_id)
        self.authorize(context, operation, ResourceType.TOPIC, topic.name)
        return topic

    def known_topic(self, name: str) -> Topic | None:
        """Return a topic for a client that is authorized, or None if it is unknown, or has to be waited for."""
        return self._storage.known_topic(name)

    def known_topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic with that id for a client that is authorized, or None as `known_topic` does."""
        return self._storage.known_topic_by_id(topic_id)

    async def find_topic_by_id(self, topic_id: UUID) -> Topic:
        """Return the topic with that id for a client that is authorized. Raises UnknownTopicId."""
        topic = await self._storage.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        return topic

    async def partition(
        self, context: RequestContext, name: str, number: int, operation: Operation
    ) -> TopicPartition:
        """Return an existing partition. Raises UnknownTopicOrPartition."""
        return partition_of(await self.topic(context, name, operation), number)

    async def topics(self, context: RequestContext, operation: Operation) -> Sequence[Topic]:
        """Return all topics that the operation is allowed on, sorted by name."""
        topics = await self.all_topics()
        if self.authorization is None:
            return topics
        return [topic for topic in topics if self.may(context, operation, ResourceType.TOPIC, topic.name)]

    async def all_topics(self) -> Sequence[Topic]:
        """Return all topics, sorted by name, for a client that is authorized."""
        known = await self._storage.topics()
        return [known[name] for name in sorted(known)]

    def group(self, context: RequestContext, group_id: str | None, operation: Operation) -> str:
        """Return the group's id. The empty id is valid, as in Kafka.

        Raises InvalidGroupId for null, and for an id that is too long for a response of some version.
        """
        if group_id is None:
            raise InvalidGroupId
        self.authorize(context, operation, ResourceType.GROUP, group_id)
        if is_longer(group_id, LONGEST_ID_BYTES):
            raise InvalidGroupId
        return group_id

    def cluster(self, context: RequestContext, operation: Operation) -> None:
        """Authorize an operation on the cluster."""
        self.authorize(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    # --- Topics -----------------------------------------------------------------------------------------

    def rules(self, topic: Topic) -> TopicRules:
        """Return the topic's rules. They are cached, and computed again after the topic was altered."""
        known = self._rules.get(topic.name)
        if known is None or known[0] is not topic:
            known = self._rules[topic.name] = (topic, rules_of(topic.settings, self.config))
        return known[1]

    def authorize_creation(self, context: RequestContext, name: str) -> None:
        """Raise TopicAuthorizationFailed unless the client may create topics on the cluster, or this one."""
        if not self.may_on_cluster(context, Operation.CREATE):
            self.authorize(context, Operation.CREATE, ResourceType.TOPIC, name)

    async def plan_topic(self, new: NewTopic) -> PlannedTopic:
        """Return the topic as it would be created, without creating it. Raises the KafkaError that prevents it."""
        planned = plan(new, self.config, await self._storage.topics(), self.membership.living)
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
        """Return the topic with that name. Create it with the broker's defaults if it does not exist.

        The client is authorized to describe it. Raises TopicAuthorizationFailed if it may not create it.
        """
        try:
            return await self.find_topic(name)
        except UnknownTopicOrPartition:
            self.authorize_creation(context, name)
        try:
            planned = await self.plan_topic(NewTopic(name))
            self.quotas.mutated(context, planned.partitions, is_strict=True)
            topic = await self.create_topic(planned)
        except ThrottlingQuotaExceeded as error:  # as in Kafka; clients ask again
            raise UnknownTopicOrPartition(error.message) from None
        except TopicAlreadyExists:  # another client created it in the meantime
            return await self.find_topic(name)
        log_topic(context, topic, "created")
        return topic

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its cached state. Raises UnknownTopicOrPartition if it does not exist any more."""
        await self._storage.delete_topic(topic)
        await self.log.forget(topic)
        await self.share.coordinator.forget_topic(topic.topic_id)
        self._partition_count -= topic.partitions
        self._rules.pop(topic.name, None)

    # --- Waiting ----------------------------------------------------------------------------------------

    @contextmanager
    def parked(self, context: RequestContext, wait_s: float) -> Iterator[None]:
        """Limit the wait inside this block to `wait_s` seconds. A drain or the client's disconnect ends it early.

        The block then ends as if the time were over, and the handler responds with the records available.
        """
        with trio.move_on_after(0 if self._draining else wait_s) as scope:
            context.parked, context.has_parked = scope, True
            context.release_objects()
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


def log_topic(context: RequestContext, topic: Topic, change: str) -> None:
    """Log that a client's request has created or deleted a topic."""
    fields = {"_change": change, "topic": topic.name, "partitions": topic.partitions, **context.log_fields}
    logger.info("topic %(topic)s was %(_change)s", fields)


def _node(broker: Registration, listener: str) -> Node:
    host, port = broker.addresses[listener]
    return Node(broker.node_id, host, port, broker.rack)


def log_dir_of(url: str) -> str:
    """Return the URL of a storage as a path: that of its folder or socket, else /SCHEME/SERVERS/DATABASE."""
    scheme, _, rest = url.partition(":")
    parts = urlsplit(f"x:{rest}")
    path = unquote(parts.path).replace(" ", "_")
    if scheme in ("embedded", "unix"):
        return str(Path(path).absolute())
    servers = parts.netloc.rpartition("@")[2]
    return "/" + "/".join(each for each in (scheme, servers, path.strip("/")) if each)


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
    membership: Membership | None = None,
    counters: Counters | None = None,
    clock: Callable[[], int] = now_in_ms,
    remote: RemoteStore | None = None,
    make_groups: MakeGroups = GroupCoordinator,
) -> Broker:
    """Create the broker on a storage, and store a cluster id if there is none.

    Without `membership`, the broker is alone, at the default address. `remote` is the lake at `lake.url`, if that is
    set. Raises AuthorizerUsageError.
    """
    if counters is not None and counters.is_counting:
        storage.start_counting()
    if membership is None:
        membership = Membership(registration_of(config, {"PLAINTEXT": ("localhost", 9092)}, clock()))
    if config.node_id != membership.node_id:
        config = evolve(config, node_id=membership.node_id)
    log, leases = Tiers(storage, config, remote), Leases(storage)
    quotas = ClientQuotas(storage, config)
    await quotas.stored.refresh_or_report()
    producer_ids = ProducerIds(storage, clock)
    groups = make_groups(storage, config, clock, membership)
    broker = Broker(
        storage=storage,
        config=config,
        cluster_id=await _cluster_id(storage),
        membership=membership,
        counters=counters or Counters(),
        clock=clock,
        authorization=await open_authorization(storage, config),
        log=log,
        answers=AnswerBudget(share_of(config.queued_max_response_bytes, config.processes)),
        producer_ids=producer_ids,
        groups=groups,
        transactions=TransactionCoordinator(
            storage, config, clock, membership, producer_ids.allocate, processes=groups.processes
        ),
        retention=RetentionWorker(storage, config, leases, log),
        compaction=CompactionWorker(storage, config, leases),
        hanging=HangingTransactions(storage, config, leases, clock),
        users=Users(storage),
        quotas=quotas,
    )
    await broker.dynamic.refresh_or_report()
    await broker.group_settings.refresh_or_report()
    return broker


def registration_of(
    config: Config,
    addresses: Mapping[str, tuple[str, int]],
    start_ms: int,
    *,
    incarnation: str = "",
    version: str = "",
) -> Registration:
    """Return the registration of a broker with these advertised addresses, by listener name."""
    return Registration(
        FIRST_ID if config.node_id == ASSIGNED else config.node_id,
        incarnation,
        addresses,
        config.broker_rack,
        version,
        start_ms,
        config.processes,
    )


async def _cluster_id(storage: Storage) -> str:
    """Return the cluster id that all brokers on this store share: 22 characters, as in Kafka."""
    while (document := await storage.load(*CLUSTER_ID)) is None:
        cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=")
        try:
            await storage.save(*CLUSTER_ID, cluster_id, expected_version=0)
        except DocumentConflict:
            continue
    return document.value.decode()
