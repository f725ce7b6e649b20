"""A test DSL for a group and its members: each call is a request, and returns the answers that were sent.

talk = Conversation()
assert [] == talk.join("a")
assert [] == talk.join("b")
assert ["a leads 1: a, b", "b follows a in 1"] == talk.wait(3000)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from attrs import define, field

from korvet.groups.classic import ClassicGroup
from korvet.groups.members import CONSUMER, NEW_MEMBER, GroupLimits, Join, Joined, Leave, Sync, Synced
from korvet.protocol.errors import ErrorCode, KafkaError

RANGE = (("range", b"range"),)
BOTH = (("range", b"range"), ("sticky", b"sticky"))
ID_GIVEN = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata, with user data after the topics."""
    names = b"".join(len(name).to_bytes(2, "big") + name for name in map(str.encode, topics))
    return b"\x00\x03" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


@define
class Conversation:
    """Identifies members by client id or group instance id, and creates their member ids."""

    limits: GroupLimits = field(factory=GroupLimits)
    group: ClassicGroup = field(init=False)
    now_ms: int = 0
    ids: dict[str, str] = field(factory=dict)
    names: dict[str, str] = field(factory=dict)
    _numbers: itertools.count[int] = field(factory=itertools.count)

    def __attrs_post_init__(self) -> None:
        self.group = ClassicGroup("g", self.limits, self._new_member_id)

    def _new_member_id(self, prefix: str) -> str:
        member_id = f"{prefix}-{next(self._numbers)}"
        self.names[member_id] = prefix
        return member_id

    # --- What members say -------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        *,
        static: bool = False,
        as_new: bool = False,
        can_be_sent_away: bool = False,
        can_skip_assignment: bool = True,
        member_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = CONSUMER,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
    ) -> list[str]:
        known = NEW_MEMBER if as_new else self.ids.get(name, NEW_MEMBER)
        join = Join(
            member_id=known if member_id is None else member_id,
            group_instance_id=name if static else None,
            client_id=name,
            client_host=f"/{name}",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            can_be_sent_away=can_be_sent_away,
            can_skip_assignment=can_skip_assignment,
        )
        self.group.join(join, ("join", name), self.now_ms)
        self.group.tick(self.now_ms)
        return self.responses()

    def sync(
        self,
        name: str,
        *,
        generation: int | None = None,
        member_id: str | None = None,
        instance: str | None = None,
        protocol: tuple[str | None, str | None] = (None, None),
        **assignments: str,
    ) -> list[str]:
        sync = Sync(
            member_id=self.ids.get(name, name) if member_id is None else member_id,
            generation_id=self.group.generation_id if generation is None else generation,
            group_instance_id=instance,
            protocol_type=protocol[0],
            protocol_name=protocol[1],
            assignments={self.ids[key]: value.encode() for key, value in assignments.items()},
        )
        self.group.sync(sync, ("sync", name), self.now_ms)
        self.group.tick(self.now_ms)
        return self.responses()

    def heartbeat(self, name: str, *, generation: int | None = None, instance: str | None = None) -> str:
        number = self.group.generation_id if generation is None else generation
        try:
            self.group.heartbeat(self.ids.get(name, name), instance, number, self.now_ms)
        except KafkaError as error:
            return error.error_code.name
        return "ok"

    def commit(
        self,
        name: str | None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        member_id: str | None = None,
    ) -> str:
        number = self.group.generation_id if generation is None else generation
        known = self.ids.get(name or "", NEW_MEMBER) if member_id is None else member_id
        try:
            self.group.check_commit(known, instance, number, self.now_ms)
        except KafkaError as error:
            return error.error_code.name
        return "ok"

    def leave(self, *names: str) -> list[str]:
        return self.leave_as(*(Leave(self.ids[name]) for name in names))

    def leave_as(self, *leaving: Leave) -> list[str]:
        outcomes = self.group.leave(leaving, self.now_ms)
        self.group.tick(self.now_ms)
        return [*(code.name for code in outcomes if code), *self.responses()]

    def wait(self, ms: int) -> list[str]:
        """Advance the time, and call `tick` whenever a timeout passes."""
        end_ms = self.now_ms + ms
        while self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, int(self.group.wake_ms))
            self.group.tick(self.now_ms)
        self.now_ms = end_ms
        return self.responses()

    # --- Answers ----------------------------------------------------------------------------------------

    def responses(self) -> list[str]:
        answers, self.group.answers = self.group.answers, []
        return [self._read(ticket, answer) for ticket, answer in answers]

    def _read(self, ticket: object, answer: Joined | Synced) -> str:
        assert isinstance(ticket, tuple)
        _, name = ticket
        if answer.error_code in ID_GIVEN and isinstance(answer, Joined):
            self.ids[name] = answer.member_id
        if answer.error_code:
            return f"{name}: {answer.error_code.name}"
        if isinstance(answer, Synced):
            return f"{name} gets {answer.assignment.decode() or 'nothing'}"
        skipping = " and skips" if answer.skip_assignment else ""
        if answer.leader == answer.member_id:
            members = ", ".join(self.names[member.member_id] for member in answer.members)
            return f"{name} leads {answer.generation_id}{skipping}: {members}"
        return f"{name} follows {self.names[answer.leader]} in {answer.generation_id}"

    @property
    def members(self) -> Sequence[str]:
        return [self.names[member_id] for member_id in self.group.members]

    # --- Beginnings -------------------------------------------------------------------------------------

    def settle(self, *names: str, **options: object) -> None:
        """Let these members join an empty group and get their assignments."""
        for name in names:
            self.join(name, **options)  # type: ignore[arg-type]
        self.wait(self.limits.initial_rebalance_delay_ms)
        self.wait(0)
        while self.group.state.value == "PreparingRebalance":
            self.wait(self.limits.initial_rebalance_delay_ms)
        self.sync_all(*names)

    def sync_all(self, *names: str) -> list[str]:
        leader = self.names[self.group.leader or ""]
        for name in names:
            if name != leader:
                self.sync(name)
        return self.sync(leader, **{name: name.upper() for name in names})
