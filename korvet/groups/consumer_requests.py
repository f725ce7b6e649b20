"""Requests of clients for consumer groups, as the coordinator answers them: pure functions of a group and a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from uuid import UUID

from attrs import define, field, frozen

from korvet.config import Config
from korvet.groups import commits, consumer_heartbeats
from korvet.groups.classic import ClassicGroup
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import JOIN_EPOCH, Beat, ConsumerLimits, ConsumerMember, Heartbeat
from korvet.groups.machine import GroupMachine
from korvet.groups.members import GroupLimits
from korvet.groups.migration import upgraded
from korvet.groups.share import ShareGroup
from korvet.groups.subscriptions import Topic, Topics
from korvet.protocol.errors import GroupIdNotFound, KafkaError, UnsupportedAssignor, UnsupportedVersion
from korvet.storage import interface as storage

# An expression is matched with the topics again at the earliest after this time.
REFRESH_AT_LEAST_MS = 10_000

Settings = Mapping[str, str]
NO_SETTINGS: Settings = MappingProxyType({})


@frozen
class Answer:
    """The answer to a heartbeat. The caller has to resolve the expressions in `stale` again."""

    beat: Beat
    heartbeat_interval_ms: int
    stale: tuple[str, ...] = ()


@define(eq=False)
class KnownTopics:
    """The existing topics as groups see them: the same object as long as no topic has changed."""

    topics: Topics = field(factory=dict)
    names: dict[UUID, str] = field(factory=dict)
    _source: Mapping[str, storage.Topic] | None = None

    def see(self, source: Mapping[str, storage.Topic]) -> Topics:
        """Return the topics of the catalogue."""
        if source is not self._source:
            self._source = source
            seen = {name: Topic(name, topic.topic_id, topic.partitions) for name, topic in source.items()}
            if seen != self.topics:
                self.topics = seen
                self.names = {topic.topic_id: name for name, topic in seen.items()}
        return self.topics


def classic_limits_of(config: Config) -> GroupLimits:
    """Return the limits of classic groups."""
    return GroupLimits(config.group_initial_rebalance_delay_ms, config.group_max_size)


def limits_of(config: Config, own: Settings) -> ConsumerLimits:
    """Return the limits of a group with settings of its own, within the bounds that the broker has now."""

    def bounded(name: str) -> int:
        least, default, most = (
            int(getattr(config, f"group_consumer_{prefix}{name}_ms")) for prefix in ("min_", "", "max_")
        )
        value = own.get(f"consumer.{name.replace('_', '.')}.ms")
        return default if value is None else min(max(int(value), least), most)

    return ConsumerLimits(
        bounded("session_timeout"),
        bounded("heartbeat_interval"),
        bounded("assignment_interval"),
        config.group_consumer_max_size,
        config.group_consumer_assignors,
        config.group_consumer_migration_policy in ("bidirectional", "upgrade"),
        config.group_consumer_migration_policy in ("bidirectional", "downgrade"),
        classic_limits_of(config),
    )


@define(eq=False)
class KnownLimits:
    """The limits of groups, computed again when settings have changed. Groups without settings share one entry."""

    _limits: dict[str, tuple[Config, Settings, ConsumerLimits]] = field(factory=dict)

    def of(self, config: Config, settings: Mapping[str, Settings], group_id: str) -> ConsumerLimits:
        """Return the limits of a group. A change of settings has to replace the group's settings, or all."""
        own = settings.get(group_id, NO_SETTINGS)
        key = "" if own is NO_SETTINGS else group_id
        known = self._limits.get(key)
        if known is None or known[0] is not config or known[1] is not own:
            known = self._limits[key] = (config, own, limits_of(config, own))
        return known[2]


@frozen
class Resolved:
    """The topics that match a heartbeat's expression, or why it does not compile."""

    matching: frozenset[str] | None = None
    invalid: KafkaError | None = None


def consumer_beat(
    machine: GroupMachine,
    request: Heartbeat,
    topics: Topics,
    limits: ConsumerLimits,
    now_ms: float,
    *,
    exists: bool = True,
    resolved: Resolved = Resolved(),
) -> Beat:
    """Handle a heartbeat, which may convert the machine's group. `exists` is False if clients cannot see the group.

    Raises UnsupportedAssignor, GroupIdNotFound, the error in `resolved`, and the errors of `consumer_heartbeats.check`.
    """
    group = _consumer_group(machine, request, topics, limits, now_ms, exists=exists)
    consumer_heartbeats.check(group, request)
    if resolved.invalid is not None:
        raise resolved.invalid
    if request.expression and resolved.matching is not None:
        group.resolve(request.expression, resolved.matching)
    beat = consumer_heartbeats.heartbeat(group, request, topics, now_ms)
    if group is not machine.group:
        machine.convert(group)
    return beat


def _consumer_group(
    machine: GroupMachine,
    request: Heartbeat,
    topics: Topics,
    limits: ConsumerLimits,
    now_ms: float,
    *,
    exists: bool,
) -> ConsumerGroup:
    """Return the group for a heartbeat: the machine's, or the one into which it is converted."""
    if request.assignor is not None and request.assignor not in limits.assignors:
        supported = ", ".join(limits.assignors)
        raise UnsupportedAssignor(
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {supported}."
        )
    group = machine.group
    if isinstance(group, ConsumerGroup):
        group.limits = limits
        return group
    if isinstance(group, ShareGroup):
        raise GroupIdNotFound(f"Group {group.group_id} is not a consumer group.")
    if not exists and request.member_epoch != JOIN_EPOCH:
        raise GroupIdNotFound(f"Consumer group {group.group_id} not found.")
    if request.member_epoch != JOIN_EPOCH:
        raise GroupIdNotFound(f"Group {group.group_id} is not a consumer group.")
    if group.members:
        return upgraded(group, limits, topics, now_ms)
    # Stored commits of a classic group are fenced by its generation, so that it must not fall. In Kafka the epoch is 1
    # before the first member joins.
    epoch = max(group.generation_id, 1)
    return ConsumerGroup(group.group_id, limits, epoch=epoch, assignment_epoch=epoch)


def steady_member(group: ConsumerGroup, request: Heartbeat, topics: Topics) -> ConsumerMember | None:
    """Return the member if its heartbeat only extends its session, which the caller then does."""
    member = group.members.get(request.member_id)
    is_steady = (
        member is not None
        and member.classic is None
        and request.member_epoch == member.epoch == group.assignment_epoch == group.epoch
        and member.current.is_reconciled_to(group.assignment_epoch)
        and request.names is None
        and request.expression is None
        and request.owned is None
        and request.rebalance_timeout_ms == -1
        and request.assignor is None
        and request.rack_id is None
        and request.instance_id in (None, member.instance_id)
        and (request.client_id, request.client_host) == (member.details.client_id, member.details.client_host)
        and group.subscriptions.has_seen(topics)
    )
    return member if is_steady else None


@frozen
class CommitCheck:
    """The fields of a commit that decide if the client may commit offsets.

    `has_epoch` is False for clients that send generations only.
    """

    offsets: Iterable[storage.TopicPartition]
    member_id: str
    instance_id: str | None
    generation_id: int
    staging: bool = False
    has_epoch: bool = True

    def errors(
        self, group: ClassicGroup | ConsumerGroup, topics: Topics, now_ms: float
    ) -> dict[storage.TopicPartition, KafkaError]:
        """Return the errors of partitions for which the client may not commit. Raises the error of the whole commit."""
        if isinstance(group, ConsumerGroup):
            return self._errors(group, topics)
        check = group.check_staging if self.staging else group.check_commit
        check(self.member_id, self.instance_id, self.generation_id, now_ms)
        return {}

    def needs_topics(self, group: ClassicGroup | ConsumerGroup) -> bool:
        """Return True if `errors` depends on the topics: a member of a consumer group commits with an older epoch."""
        if isinstance(group, ClassicGroup):
            return False
        member = group.members.get(self.member_id)
        return member is not None and self.generation_id < member.epoch

    def state(self, group: ClassicGroup | ConsumerGroup) -> object:
        """Return what must not change before the commit is written."""
        if isinstance(group, ClassicGroup):
            return group.generation_id
        return self.member_id in group.members, self.member_id in group.changes.released

    def _errors(self, group: ConsumerGroup, topics: Topics) -> dict[storage.TopicPartition, KafkaError]:
        ids = {(topics[tp.topic].topic_id, tp.partition): tp for tp in self.offsets if tp.topic in topics}
        if self.staging:
            errors = commits.check_staging(group, self.member_id, self.instance_id, self.generation_id, ids)
        else:
            known = group.members.get(self.member_id)
            if not self.has_epoch and known is not None and known.classic is None:
                raise UnsupportedVersion("OffsetCommit up to version 8 has no member epoch.")
            errors = commits.check_commit(group, self.member_id, self.generation_id, ids)
        return {ids[partition]: error for partition, error in errors.items()}


@define(eq=False)
class Refreshes:
    """When the expressions of each group were matched with the topics, and with which."""

    _last: dict[str, tuple[float, Topics]] = field(factory=dict)

    def stale(self, group: ConsumerGroup, topics: Topics, now_ms: float, interval_ms: int) -> tuple[str, ...]:
        """Return the expressions to be matched again, since topics have changed or the interval has passed.

        It counts as done: the caller does it.
        """
        if not group.resolved:
            return ()
        last_ms, seen = self._last.get(group.group_id, (float("-inf"), {}))
        age_ms = now_ms - last_ms
        if age_ms < REFRESH_AT_LEAST_MS or (seen is topics and age_ms < interval_ms):
            return ()
        self._last[group.group_id] = (now_ms, topics)
        return tuple(group.resolved)

    def forget(self, group_id: str) -> None:
        """Forget a group that is deleted."""
        self._last.pop(group_id, None)
