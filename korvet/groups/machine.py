"""A group as the runtime runs it: with its document, and the wall clock time at which it entered its state.

A group is of one type: classic, consumer or share. A classic or consumer group without members becomes one of the other
of these types on the first request of a member that needs it, and one with members as `korvet.groups.migration`
describes. A share group stays one until it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from korvet.groups import document, parts, share_document
from korvet.groups.classic import ClassicGroup
from korvet.groups.consumer import ConsumerGroup, Downgrade
from korvet.groups.consumer_members import Changes, ConsumerLimits, ConsumerState
from korvet.groups.document import read, written
from korvet.groups.members import GroupLimits, State
from korvet.groups.migration import downgraded
from korvet.groups.parts import (
    all_parts,
    changed_parts,
    is_consumer_head,
    read_parts,
    removed_parts,
    written_head,
)
from korvet.groups.share import ShareGroup, ShareGroupLimits, ShareState
from korvet.groups.share_document import is_share_document, read_share, written_share
from korvet.protocol.errors import ErrorCode
from korvet.storage.parts import Parted

Group = ClassicGroup | ConsumerGroup | ShareGroup


@define(eq=False)
class GroupMachine:
    """Implements `korvet.coordination.runtime.Machine`. `clock` returns milliseconds since 1970."""

    group: Group
    clock: Callable[[], int]
    since_ms: int = 0
    _saved_state: State | ConsumerState | ShareState | None = None
    _saved_generation: int = 0
    _is_converted: bool = False  # the stored document is of another group
    _stale: set[str] = field(factory=set)  # members that may have parts in it

    @property
    def answers(self) -> list[tuple[object, Any]]:
        """See `Machine.answers`."""
        return self.group.answers

    @property
    def is_unsaved(self) -> bool:
        """See `Machine.is_unsaved`."""
        return self._is_converted or self.group.is_unsaved

    @property
    def is_used(self) -> bool:
        """True if the group has members, or a client is about to join."""
        group = self.group
        if not isinstance(group, ClassicGroup):
            return bool(group.members)
        return group.state is not State.EMPTY or group.has_newcomers

    @property
    def is_empty(self) -> bool:
        """True if the group has no members."""
        return self.group.state in (State.EMPTY, ConsumerState.EMPTY, ShareState.EMPTY)

    @property
    def ends_writes(self) -> bool:
        """True if members may not commit any more, or not for partitions that they have released.

        Members of a classic group's previous generation may not commit in the next one.
        """
        group = self.group
        if isinstance(group, ConsumerGroup):
            return self._is_converted or bool(group.changes.released)
        if isinstance(group, ShareGroup):
            return self._is_converted
        return self._is_converted or group.generation_id != self._saved_generation

    @property
    def wake_ms(self) -> float:
        """See `Machine.wake_ms`."""
        return self.group.wake_ms

    def tick(self, now_ms: float) -> None:
        """See `Machine.tick`. Convert a consumer group whose last member of the consumer protocol is gone."""
        group = self.group
        group.tick(now_ms)
        if not isinstance(group, ConsumerGroup) or group.downgrade is None:
            return
        if not group.can_downgrade:
            group.downgrade = None
        elif group.subscriptions.has_topics:
            self.convert(downgraded(group, group.downgrade, now_ms))
        else:
            group.downgrade = Downgrade()  # later, when the epoch of before is saved

    def resume(self, now_ms: float) -> None:
        """See `Machine.resume`."""
        self.group.resume(now_ms)

    def convert(self, group: Group) -> None:
        """Use a group of the other type from now on. The answers of the present one are sent."""
        present = self.group
        if isinstance(present, ClassicGroup):
            present.give_up(ErrorCode.REBALANCE_IN_PROGRESS)
        elif isinstance(present, ConsumerGroup) and not self._is_converted:
            self._stale = {*present.members, *present.changes.members}
        group.answers[:0] = present.answers
        self.group, self._is_converted = group, True

    def written(self) -> bytes | Parted:
        """Return the document. If state or generation have changed, the group has entered its state now."""
        group = self.group
        state = group.state
        generation = group.generation_id if isinstance(group, ClassicGroup) else group.epoch
        if (state, generation) != (self._saved_state, self._saved_generation):
            self.since_ms = self.clock()
        self._saved_state, self._saved_generation = state, generation
        is_converted, self._is_converted = self._is_converted, False
        stale, self._stale = self._stale, set()
        if isinstance(group, ConsumerGroup):
            changes = {**removed_parts(stale), **all_parts(group)} if is_converted else changed_parts(group)
            group.changes = Changes()
            return Parted(written_head(group, self.since_ms), changes)
        group.is_unsaved = False
        if isinstance(group, ShareGroup):
            return written_share(group, self.since_ms)
        return written(group, self.since_ms)

    def give_up(self, error_code: ErrorCode) -> None:
        """See `Machine.give_up`."""
        self.group.give_up()
        self.group.answers = [
            (ticket, type(answer)(error_code=error_code)) for ticket, answer in self.group.answers
        ]


def type_of(group: Group) -> str:
    """Return the type of a group, as ListGroups names it."""
    if isinstance(group, ShareGroup):
        return share_document.TYPE
    return parts.TYPE if isinstance(group, ConsumerGroup) else document.TYPE


def new_machine(group_id: str, limits: GroupLimits, clock: Callable[[], int]) -> GroupMachine:
    """Return the machine of a group that has no document."""
    return GroupMachine(ClassicGroup(group_id, limits), clock)


def read_machine(
    group_id: str,
    head: bytes,
    stored: Mapping[str, bytes],
    limits: GroupLimits,
    consumer_limits: ConsumerLimits,
    clock: Callable[[], int],
    share_limits: ShareGroupLimits | None = None,
) -> GroupMachine:
    """Return the machine of a group's document. Raises UnreadableDocument."""
    group, since_ms = read_group(group_id, head, stored, limits, consumer_limits, share_limits)
    generation = group.generation_id if isinstance(group, ClassicGroup) else group.epoch
    return GroupMachine(group, clock, since_ms, saved_state=group.state, saved_generation=generation)


def read_group(
    group_id: str,
    head: bytes,
    stored: Mapping[str, bytes],
    limits: GroupLimits,
    consumer_limits: ConsumerLimits,
    share_limits: ShareGroupLimits | None = None,
) -> tuple[Group, int]:
    """Return the group of a document, and its `since_ms`. Raises UnreadableDocument."""
    if is_share_document(head):
        return read_share(group_id, head, share_limits or ShareGroupLimits())
    if is_consumer_head(head):
        return read_parts(group_id, head, stored, consumer_limits)
    return read(group_id, head, limits)
