"""A test DSL for a consumer group and its members: each call is a heartbeat, and returns the answer as text.

talk = ConsumerConversation.about(t=4)
assert "1: t0 t1 t2 t3" == talk.join("a")
assert "2:" == talk.join("b")
assert "1: t0 t1" == talk.beat("a")

An answer is the member epoch and, if there is one, the assignment; or the name of an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from attrs import define, field

from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_heartbeats import heartbeat
from korvet.groups.consumer_members import Beat, ConsumerLimits, Heartbeat
from korvet.groups.subscriptions import Assignment, Topic
from korvet.protocol.errors import KafkaError

REBALANCE_MS = 60_000


@define
class ConsumerConversation:
    """Members are known by their member ids. Time passes only in `wait`. Topics have names of one letter."""

    limits: ConsumerLimits = field(factory=lambda: ConsumerLimits(assignment_interval_ms=0))
    topics: dict[str, Topic] = field(factory=dict)
    group: ConsumerGroup = field(init=False)
    epochs: dict[str, int] = field(factory=dict)
    now_ms: float = 0.0
    _ids: int = 0

    def __attrs_post_init__(self) -> None:
        self.group = ConsumerGroup("g", self.limits)

    @classmethod
    def about(cls, *, limits: ConsumerLimits | None = None, **partitions: int) -> ConsumerConversation:
        """Begin a conversation with topics of these numbers of partitions."""
        talk = cls() if limits is None else cls(limits)
        for name, count in partitions.items():
            talk.create(name, count)
        return talk

    def create(self, name: str, partitions: int) -> UUID:
        """Create a topic, or give it more partitions; the group sees another snapshot of the topics."""
        known = self.topics.get(name)
        self._ids += 1
        topic_id = UUID(int=self._ids) if known is None else known.topic_id
        self.topics = {**self.topics, name: Topic(name, topic_id, partitions)}
        return topic_id

    def delete(self, name: str) -> None:
        self.topics = {key: topic for key, topic in self.topics.items() if key != name}

    # --- Heartbeats -------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        topics: str = "t",
        *,
        instance: str | None = None,
        expression: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
    ) -> str:
        return self.send(
            Heartbeat(
                member_id=name,
                member_epoch=0,
                instance_id=instance,
                rebalance_timeout_ms=rebalance_ms,
                client_id=f"client-{name}",
                client_host=f"/{name}",
                names=frozenset(topics),
                expression=expression,
                assignor=assignor,
                owned={},
            )
        )

    def beat(
        self,
        name: str,
        owned: str | None = None,
        *,
        epoch: int | None = None,
        topics: str | None = None,
        expression: str | None = None,
        instance: str | None = None,
        is_full: bool = False,
    ) -> str:
        return self.send(
            Heartbeat(
                member_id=name,
                member_epoch=self.epochs.get(name, 1) if epoch is None else epoch,
                instance_id=instance,
                rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
                client_id=f"client-{name}",
                client_host=f"/{name}",
                names=None if topics is None else frozenset(topics),
                expression=expression,
                owned=None if owned is None else self.assignment(owned),
            )
        )

    def leave(self, name: str, *, instance: str | None = None, for_a_while: bool = False) -> str:
        epoch = -2 if for_a_while else -1
        return self.send(Heartbeat(member_id=name, member_epoch=epoch, instance_id=instance))

    def send(self, request: Heartbeat) -> str:
        try:
            beat = heartbeat(self.group, request, self.topics, self.now_ms)
        except KafkaError as error:
            return error.error_code.name
        self.epochs[beat.member_id] = beat.member_epoch
        return self.told(beat)

    def wait(self, ms: float) -> None:
        """Advance the time, and call `tick` whenever a timeout passes."""
        end_ms = self.now_ms + ms
        while self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            self.group.tick(self.now_ms)
        self.now_ms = end_ms

    def settle(self, *names: str) -> None:
        """Let these members follow their assignments until nothing changes."""
        for _ in range(4):
            for name in names:
                self.beat(name)
                self.beat(name, owned=self.owned(name))

    # --- Text -------------------------------------------------------------------------------------------

    def assignment(self, text: str) -> Assignment:
        """Return the assignment of a text like "t0 t1"."""
        assignment: dict[UUID, set[int]] = {}
        for word in text.split():
            assignment.setdefault(self.topics[word[0]].topic_id, set()).add(int(word[1:]))
        return {topic_id: frozenset(numbers) for topic_id, numbers in assignment.items()}

    def told(self, beat: Beat) -> str:
        epoch = str(beat.member_epoch)
        return epoch if beat.assignment is None else f"{epoch}: {self.text(beat.assignment)}".rstrip()

    def text(self, assignment: dict[UUID, Iterable[int]]) -> str:
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        return " ".join(
            sorted(f"{names.get(key, '?')}{each}" for key, numbers in assignment.items() for each in numbers)
        )

    def state(self) -> str:
        return self.group.state.value

    def owned(self, name: str) -> str:
        """Return the partitions that are assigned to a member now."""
        return self.text(self.group.members[name].current.assigned)

    def target(self, name: str) -> str:
        return self.text(self.group.targets.get(name, {}))
