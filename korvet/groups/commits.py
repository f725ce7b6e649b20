"""Which members of a consumer group may commit and fetch offsets."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import ConsumerMember
from korvet.protocol.errors import IllegalGeneration, KafkaError, StaleMemberEpoch, UnknownMemberId

Partition = tuple[UUID, int]


def check_commit(
    group: ConsumerGroup, member_id: str, epoch: int, partitions: Iterable[Partition]
) -> dict[Partition, KafkaError]:
    """Return the errors of the partitions for which a member may not commit offsets.

    A client that is not a member may commit while the group is empty. A member may commit with an older epoch for a
    partition that it has owned since then. Raises UnknownMemberId, StaleMemberEpoch or IllegalGeneration for the
    whole commit. For classic members, the epoch is the generation.
    """
    if epoch < 0 and not group.members:
        return {}
    member = _member(group, member_id)
    if epoch == member.epoch:
        return {}
    if epoch > member.epoch:
        raise _wrong_epoch(member, epoch)
    errors: dict[Partition, KafkaError] = {}
    for topic_id, partition in partitions:
        granted = member.current.granted_epoch(topic_id, partition)
        if granted is None or epoch < granted:
            errors[topic_id, partition] = _wrong_epoch(member, epoch)
    return errors


def check_staging(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[Partition],
) -> dict[Partition, KafkaError]:
    """Do the same for offsets in a transaction. A producer may stage them without a consumer's member id."""
    if epoch < 0 and not member_id and instance_id is None:
        return {}
    return check_commit(group, member_id, epoch, partitions)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raise the error that forbids to fetch offsets, if there is one. Without a member id it is always allowed."""
    if member_id is None and epoch < 0:
        return
    member = _member(group, member_id or "")
    if epoch != member.epoch:
        raise _wrong_epoch(member, epoch)


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId
    return member


def _wrong_epoch(member: ConsumerMember, epoch: int) -> KafkaError:
    error = StaleMemberEpoch if member.classic is None else IllegalGeneration
    return error(f"the member's epoch is {member.epoch}, not {epoch}")
