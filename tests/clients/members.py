"""Members of groups: for each library, a consumer that subscribes and runs in its own thread.

`events` lists rebalances ("assigned 0, 1", "revoked 1"), and `received` lists records. All members of a `Party` share a
condition, which they notify of changes, so that tests need not poll.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener as AioListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRangeAssignor
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaConnectionError

from tests.clients.interface import LIMIT_S, Timeout

POLL_S = 0.1


class Member(ABC):
    """One consumer. `close` leaves the group, unless it is static."""

    id: str

    def __init__(
        self, party: Party, *, instance: str | None = None, cooperative: bool = False, client_id: str = "m"
    ) -> None:
        self.party = party
        self.instance = instance
        self.cooperative = cooperative
        self.client_id = client_id
        self.events: list[str] = []
        self.received: list[bytes] = []
        self.assignment: set[int] = set()
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @abstractmethod
    def consume(self) -> None:
        """Subscribe and poll until `_stopping` is set; then leave and return."""

    def stack_trace(self) -> str:
        """Return the current stack, for the message of a timeout."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "it has ended"

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_S)
        if self._thread.is_alive():
            raise Timeout(f"{self.id} did not end: {self.stack_trace()}")
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # noqa: BLE001  `close` raises it
            self.error = error
        with self.party.changed:
            self.party.changed.notify_all()

    # --- Events -----------------------------------------------------------------------------------------

    def note_assigned(self, partitions: Iterable[int], *, incremental: bool = False) -> None:
        given = set(partitions)
        with self.party.changed:
            self.events.append(f"assigned {', '.join(map(str, sorted(given)))}".rstrip())
            self.assignment = self.assignment | given if incremental else given
            self.party.changed.notify_all()

    def note_revoked(self, partitions: Iterable[int]) -> None:
        taken = set(partitions)
        with self.party.changed:
            self.events.append(f"revoked {', '.join(map(str, sorted(taken)))}".rstrip())
            self.assignment -= taken
            self.party.changed.notify_all()

    def note_received(self, values: Iterable[bytes | None]) -> None:
        with self.party.changed:
            self.received += [value or b"" for value in values]
            self.party.changed.notify_all()


class ConfluentMember(Member):
    id = "confluent-kafka"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the group's protocol."""
        return {
            "session.timeout.ms": self.party.session_ms,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": "cooperative-sticky" if self.cooperative else "range",
        }

    @property
    def is_incremental(self) -> bool:
        """True if the broker assigns only the difference."""
        return self.cooperative

    def consume(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.party.bootstrap_servers,
            "group.id": self.party.group_id,
            "client.id": self.client_id,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            **self.settings,
        }
        if self.instance is not None:
            settings["group.instance.id"] = self.instance
        consumer = ConfluentConsumer(settings)
        consumer.subscribe(
            [self.party.topic],
            on_assign=lambda _, tps: self.note_assigned(
                (tp.partition for tp in tps), incremental=self.is_incremental
            ),
            on_revoke=lambda _, tps: self.note_revoked(tp.partition for tp in tps),
        )
        while not self._stopping.is_set():
            message = consumer.poll(POLL_S)
            if message is not None:
                error = message.error()
                if error is None:
                    self.note_received([message.value()])
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
        consumer.close()


class ConsumerProtocolMember(ConfluentMember):
    """A member of a group whose broker assigns (KIP-848): assignments are incremental, and limits are the group's."""

    id = "confluent-kafka-consumer-protocol"

    @property
    def settings(self) -> dict[str, Any]:
        return {"group.protocol": "consumer"}

    @property
    def is_incremental(self) -> bool:
        return True


class KafkaPythonMember(Member):
    id = "kafka-python"

    def consume(self) -> None:
        settings: dict[str, Any] = {}
        if self.instance is not None:
            settings["group_instance_id"] = self.instance
        assignor = CooperativeStickyAssignor if self.cooperative else RangePartitionAssignor
        consumer = KafkaConsumer(
            bootstrap_servers=self.party.bootstrap_servers,
            group_id=self.party.group_id,
            client_id=self.client_id,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=self.party.session_ms,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=30_000,
            partition_assignment_strategy=[assignor],
            **settings,
        )
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc,unused-ignore]
            def on_partitions_assigned(self, assigned: Any) -> None:
                member.note_assigned((tp.partition for tp in assigned), incremental=member.cooperative)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.note_revoked(tp.partition for tp in revoked)

        consumer.subscribe([self.party.topic], listener=Listener())
        while not self._stopping.is_set():
            # It sometimes raises when a broker is unavailable, instead of retrying.
            with suppress(KafkaConnectionError):
                for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
                    self.note_received(record.value for record in records)
        consumer.close()


class AioKafkaMember(Member):
    id = "aiokafka"
    _loop: asyncio.AbstractEventLoop | None = None

    def consume(self) -> None:
        asyncio.run(self._consume())

    def stack_trace(self) -> str:
        """Return the stacks of the tasks; the thread itself is nearly always in the event loop's select."""
        return "\n".join(" > ".join(frames_of(task)) for task in asyncio.all_tasks(self._loop))

    async def _consume(self) -> None:
        member = self
        self._loop = asyncio.get_running_loop()

        class Listener(AioListener):  # type: ignore[misc,unused-ignore]
            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.note_assigned(tp.partition for tp in assigned)

            async def on_partitions_revoked(self, revoked: Any) -> None:
                member.note_revoked(tp.partition for tp in revoked)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.party.bootstrap_servers,
            group_id=self.party.group_id,
            client_id=self.client_id,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=self.party.session_ms,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=(AioRangeAssignor,),
        )
        consumer.subscribe([self.party.topic], listener=Listener())
        await consumer.start()
        try:
            while not self._stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                    self.note_received(record.value for record in records)
        finally:
            await consumer.stop()


def frames_of(task: asyncio.Task[Any]) -> Iterator[str]:
    """Yield the coroutines of a waiting task, the outermost first; `Task.print_stack` shows only the outermost."""
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        awaited = awaited.cr_await


MEMBERS: tuple[type[Member], ...] = (ConfluentMember, KafkaPythonMember, AioKafkaMember)
COOPERATIVE: tuple[type[Member], ...] = (ConfluentMember, KafkaPythonMember, ConsumerProtocolMember)
#: Members of every kind; those of the last one form groups of their own.
KINDS: tuple[type[Member], ...] = (*MEMBERS, ConsumerProtocolMember)


class Party:
    """The members of one group. It closes the remaining members on exit."""

    def __init__(self, bootstrap_servers: str, topic: str, *, session_ms: int = 10_000) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.group_id = f"group-of-{topic}"
        self.session_ms = session_ms
        self.changed = threading.Condition()
        self.members: list[Member] = []

    def add(self, kind: type[Member], **options: Any) -> Member:
        member = kind(self, **options)
        self.members.append(member)
        return member

    def remove(self, member: Member) -> None:
        self.members.remove(member)
        member.close()

    def wait_until(self, condition: Callable[[], bool], *, limit_s: float = 2 * LIMIT_S) -> None:
        """Return once the condition holds; on timeout, raise with all events."""

        def decided() -> bool:
            return condition() or any(member.error is not None for member in self.members)

        with self.changed:
            if self.changed.wait_for(decided, limit_s) and condition():
                return
            happened = [
                (member.id, member.events, len(member.received), member.error) for member in self.members
            ]
        raise Timeout(f"it never came to that: {happened}")

    def share(self, partitions: int) -> bool:
        """Return True if every partition is assigned to exactly one member, and every member has partitions."""
        given = [partition for member in self.members for partition in member.assignment]
        return sorted(given) == list(range(partitions)) and all(m.assignment for m in self.members)

    def received(self) -> list[bytes]:
        return [value for member in self.members for value in member.received]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Close all members. Raise the first error."""
        for member in self.members:
            try:
                member.close()
            except Exception as failure:  # noqa: BLE001  raised below, or printed if there was an earlier error
                if error is None:
                    error = failure
                else:
                    error.add_note(f"{member.id}: {failure}")
        if error is not None:
            raise error
