"""A classic group as the runtime runs it: with its document, and the wall clock time at which it entered its state."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

from korvet.groups.classic import ClassicGroup
from korvet.groups.document import read, written
from korvet.groups.members import Answer, GroupLimits, State, Ticket
from korvet.protocol.errors import ErrorCode


@define(eq=False)
class GroupMachine:
    """Implements `korvet.coordination.runtime.Machine`. `clock` returns milliseconds since 1970."""

    group: ClassicGroup
    clock: Callable[[], int]
    since_ms: int = 0
    _saved_state: State | None = None
    _saved_generation: int = 0

    @property
    def answers(self) -> list[tuple[Ticket, Answer]]:
        """See `Machine.answers`."""
        return self.group.answers

    @property
    def is_unsaved(self) -> bool:
        """See `Machine.is_unsaved`."""
        return self.group.is_unsaved

    @property
    def is_used(self) -> bool:
        """True if the group has members, or a client is about to join."""
        return self.group.state is not State.EMPTY or self.group.has_newcomers

    @property
    def ends_writes(self) -> bool:
        """True if another generation is about to be saved. Members of the previous one may not commit any more."""
        return self.group.generation_id != self._saved_generation

    @property
    def wake_ms(self) -> float:
        """See `Machine.wake_ms`."""
        return self.group.wake_ms

    def tick(self, now_ms: float) -> None:
        """See `Machine.tick`."""
        self.group.tick(now_ms)

    def resume(self, now_ms: float) -> None:
        """See `Machine.resume`."""
        self.group.resume(now_ms)

    def written(self) -> bytes:
        """Return the document. If state or generation have changed, the group has entered its state now."""
        group = self.group
        if (group.state, group.generation_id) != (self._saved_state, self._saved_generation):
            self.since_ms = self.clock()
        self._saved_state, self._saved_generation = group.state, group.generation_id
        group.is_unsaved = False
        return written(group, self.since_ms)

    def give_up(self, error_code: ErrorCode) -> None:
        """See `Machine.give_up`."""
        self.group.give_up()
        self.group.answers = [
            (ticket, type(answer)(error_code=error_code)) for ticket, answer in self.group.answers
        ]


def new_machine(group_id: str, limits: GroupLimits, clock: Callable[[], int]) -> GroupMachine:
    """Return the machine of a group that has no document."""
    return GroupMachine(ClassicGroup(group_id, limits), clock)


def read_machine(
    group_id: str, document: bytes, limits: GroupLimits, clock: Callable[[], int]
) -> GroupMachine:
    """Return the machine of a group's document. Raises UnreadableDocument."""
    group, since_ms = read(group_id, document, limits)
    return GroupMachine(group, clock, since_ms, saved_state=group.state, saved_generation=group.generation_id)
