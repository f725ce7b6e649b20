"""Workers on one queue, each in a thread, which write what they do into one history.

Members of a share group speak the Kafka protocol over a socket, so that the times of their requests are known; plain
consumers use XREADGROUP, XAUTOCLAIM and XACK, and WAIT if a failover must not undo these. Both finish most records,
keep some until the lock ends, and end amid their work, as a worker that dies does. Members also release some.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Self
from uuid import UUID, uuid4

import redis
from attrs import define, field
from confluent_kafka import KafkaException, Producer
from redis.backoff import NoBackoff
from redis.retry import Retry

from conformance.talk import Connection, Ended
from korvet.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from korvet.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from korvet.protocol.requests import decode_response
from korvet.testing.queue_history import Delivered, Event, Finished, Left, Lost, Produced, Released, Sent
from korvet.testing.records import acquired_records
from tests.handlers.share_groups import ACCEPT, RELEASE
from tests.history.clients import started

TOPIC, GROUP = "jobs", "workers"
STREAM = f"korvet:{TOPIC}:0"
CONFIRMING = f"{{{STREAM}}}:confirming"  # a key of the same slot
BETWEEN_SENDS_S = 0.01
MOST_AHEAD = 500  # records that no worker got yet
# After this time without a record the producer goes on, since perhaps the broker delivers none of those ahead.
STALLED_S = 10.0
FLUSH_LIMIT_S = 120.0
JOIN_LIMIT_S = 120.0
AGAIN_S = 0.1  # after an error
CONFIRMED_LIMIT_MS = 1000


class MemberEnded(Exception):  # noqa: N818  an outcome that callers plan for
    """The session of a member has ended, or its connection."""


@define(eq=False)
class SharedLoad:
    """The workers. A context manager, which ends the threads.

    `connect` connects plain consumers. Without it there are none.
    """

    ports: Sequence[int]  # of the brokers
    topic_id: UUID
    connect: Callable[..., redis.Redis] | None
    lock_s: float
    seed: int
    replicas: int = 0  # that confirm what plain consumers do
    members: int = 3
    plain: int = 2
    events: list[Event] = field(factory=list)
    faults: list[str] = field(factory=list)  # errors that no client may get
    _stops_producing: threading.Event = field(factory=threading.Event)
    _stops: threading.Event = field(factory=threading.Event)
    _threads: dict[str, threading.Thread] = field(factory=dict)
    _seen: int = 0  # events
    _got: int = 0
    _got_s: float = field(factory=time.monotonic)  # when the producer has seen that a worker got a record

    def __enter__(self) -> Self:
        self._start("producer", self._produce)
        for number in range(self.members):
            self._start(f"member-{number}", self._again(self._work))
        for number in range(self.plain if self.connect else 0):
            self._start(f"plain-{number}", self._again(self._work_plainly))
        return self

    def __exit__(self, *_: object) -> None:
        self._stops_producing.set()
        self._stops.set()
        for thread in self._threads.values():
            thread.join(JOIN_LIMIT_S)

    def finish(self, unfinished: Callable[[], object]) -> None:
        """Stop producing, and wait until `unfinished` returns nothing."""
        self._stops_producing.set()
        self._threads["producer"].join(FLUSH_LIMIT_S)
        deadline = time.monotonic() + JOIN_LIMIT_S
        while rest := unfinished():
            assert time.monotonic() < deadline, f"the queue does not become empty: {rest}"
            time.sleep(0.2)

    # --- Threads ----------------------------------------------------------------------------------------

    def _start(self, name: str, run: Callable[[str], None]) -> None:
        self._threads[name] = started(run, name, self.faults)

    def _again(self, run: Callable[[str, Random], None]) -> Callable[[str], None]:
        """Run a worker again, with another name, whenever it has ended."""

        def repeated(name: str) -> None:
            random = Random(f"{self.seed}-{name}")
            while not self._stops.is_set():
                try:
                    run(f"{name}-{uuid4().hex[:12]}", random)
                except (MemberEnded, OSError, redis.RedisError):
                    self._stops.wait(AGAIN_S)

        return repeated

    def _produce(self, name: str) -> None:
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "client.id": name,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        number = 0

        def delivered(error: object, message: Any) -> None:
            if error is None:
                self.events.append(Produced(message.value().decode()))

        while not self._stops_producing.is_set():
            if number - self._latest() > MOST_AHEAD and time.monotonic() < self._got_s + STALLED_S:
                producer.poll(AGAIN_S)
                continue
            self.events.append(Sent(f"{number}"))
            try:
                producer.produce(TOPIC, f"{number}".encode(), partition=0, on_delivery=delivered)
            except KafkaException:
                return
            producer.poll(BETWEEN_SENDS_S)
            number += 1
        assert not producer.flush(FLUSH_LIMIT_S)

    def _latest(self) -> int:
        """Return the number of the latest record that a worker got, as the producer's thread has seen it."""
        for event in self.events[self._seen :]:
            self._seen += 1
            if isinstance(event, Delivered):
                self._got_s = time.monotonic()
                self._got = max(self._got, int(event.value))
        return self._got

    def _choice(self, random: Random) -> float:
        """Return a number that chooses what happens to a record: 1.0, to finish it, once no records are added."""
        return 1.0 if self._stops_producing.is_set() else random.random()

    # --- Members ----------------------------------------------------------------------------------------

    def _work(self, name: str, random: Random) -> None:
        connection = Connection(random.choice(self.ports), name)
        member = Member(name, self.topic_id, connection, self.events)
        try:
            while not self._stops.is_set():
                records = member.fetch(random.randint(1, 20))
                choice = self._choice(random)
                if choice < 0.05:
                    return  # dies
                if choice < 0.1:
                    self._stops.wait(self.lock_s * 1.2)  # too slow
                for value, offset in records:
                    kind = RELEASE if self._choice(random) < 0.1 else ACCEPT
                    if self._choice(random) > 0.05:
                        member.acknowledge(value, offset, kind)
        finally:
            member.close()

    # --- Plain consumers --------------------------------------------------------------------------------

    def _work_plainly(self, name: str, random: Random) -> None:
        assert self.connect is not None
        with self.connect(retry=Retry(NoBackoff(), 0), socket_timeout=20) as client:
            while not self._stops.is_set():
                asked_s = time.monotonic()
                takes_over = self._choice(random) < 0.2 or random.random() < 0.2
                try:
                    entries, count, is_confirmed = self._taken(client, name, takes_over=takes_over)
                except redis.RedisError:
                    self.events.append(Lost(name))
                    raise
                if not is_confirmed:  # as if the answer were lost: a failover may give the records to others
                    self.events.append(Lost(name))
                    continue
                at_s = time.monotonic()
                found = [(each, fields[b"value"].decode()) for each, fields in entries if fields]
                self.events += [
                    Delivered(name, value, asked_s, at_s, count, entry_id) for entry_id, value in found
                ]
                if self._choice(random) < 0.05:
                    return  # dies; its records are taken over later
                for entry_id, value in found:
                    if self._choice(random) > 0.05:
                        pipe = client.pipeline(transaction=False)
                        pipe.xack(STREAM, GROUP, entry_id)
                        pipe.wait(*self._wait)
                        is_acknowledged, confirmed = pipe.execute()
                        if is_acknowledged and confirmed >= self.replicas:
                            self.events.append(Finished(name, value, time.monotonic()))

    @property
    def _wait(self) -> tuple[int, int]:
        """The arguments of WAIT."""
        return self.replicas, CONFIRMED_LIMIT_MS

    def _taken(self, client: redis.Redis, name: str, *, takes_over: bool) -> tuple[Any, int | None, bool]:
        """Return entries that the consumer has taken, their delivery count if it is known, and if replicas have it."""
        pipe = client.pipeline(transaction=False)
        if takes_over:
            lock_ms = int(self.lock_s * 1000)
            pipe.xautoclaim(STREAM, GROUP, name, min_idle_time=lock_ms, count=5)
        else:
            pipe.xreadgroup(GROUP, name, {STREAM: ">"}, count=5, block=200)
        # In Valkey 9.1, WAIT does not count on its own an XREADGROUP that has blocked.
        pipe.set(CONFIRMING, b"")
        pipe.wait(*self._wait)
        found, _, confirmed = pipe.execute()
        is_confirmed = confirmed >= self.replicas
        if takes_over:
            return found[1], None, is_confirmed
        return [entry for _, entries in found or () for entry in entries], 1, is_confirmed


@define(eq=False)
class Member:
    """A member of the share group, and its connection."""

    name: str
    topic_id: UUID
    connection: Connection
    events: list[Event]
    epoch: int = 0
    answered_s: float = field(factory=time.monotonic)  # when the session was certainly there

    def fetch(self, most: int) -> list[tuple[str, int]]:
        """Acquire records; return their values and offsets."""
        partition = FetchPartition(partition_index=0, acknowledgement_batches=[])
        topics = [FetchTopic(topic_id=self.topic_id, partitions=[partition])]
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch,
            max_wait_ms=300,
            min_bytes=1,
            max_bytes=1_000_000,
            max_records=most,
            batch_size=most,
            topics=topics if self.epoch == 0 else [],
            forgotten_topics_data=[],
        )
        asked_s = time.monotonic()
        try:
            response = self._ask(request, ShareFetchResponse)
        except (MemberEnded, OSError):
            self.events.append(Lost(self.name))
            raise
        at_s = time.monotonic()
        found = []
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code:
                    self.events.append(Lost(self.name))
                    raise MemberEnded
                for offset, count, value in acquired_records(data):
                    text = (value or b"").decode()
                    self.events.append(Delivered(self.name, text, asked_s, at_s, count, offset))
                    found.append((text, offset))
        return found

    def acknowledge(self, value: str, offset: int, kind: int) -> None:
        """Acknowledge a record. A worker that was too slow is refused."""
        batch = AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[kind])
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch,
            topics=[AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])],
        )
        if kind == RELEASE:
            self.events.append(Released(self.name, value, time.monotonic()))
        response = self._ask(request, ShareAcknowledgeResponse)
        is_done = not any(data.error_code for topic in response.responses for data in topic.partitions)
        if kind == ACCEPT and is_done:
            self.events.append(Finished(self.name, value, time.monotonic()))

    def close(self) -> None:
        self.events.append(Left(self.name, self.answered_s))
        self.connection.close()

    def _ask(self, request: object, answer: type[Any]) -> Any:
        self.connection.send(request, 2)
        frame = self.connection.receive()
        if isinstance(frame, Ended):
            raise MemberEnded
        response = decode_response(answer, 2, frame)[1]
        if response.error_code:
            raise MemberEnded
        self.epoch += 1
        self.answered_s = time.monotonic()
        return response
