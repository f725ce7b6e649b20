"""One broker with several processes: clients see a single broker, and if one process dies, no record is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from statistics import median

import pytest
from attrs import define
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.record_batch import build_batch
from korvet.workers.groups import owner_of
from tests.failures.conftest import BATCH_DENSE, Report, StartBroker
from tests.failures.ledger import Ledgers, assert_each_once_and_in_order, consume_all
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server
from tests.support.wire import (
    Wire,
    create_topic,
    delete_topic,
    fetch_request,
    fetched,
    first_answer,
    frame_of,
    new_producer_id,
    produce_request,
    produced,
)

BATCH = build_batch([(0, 1, None, b"value", ())])
LIMIT_S = 30.0
PROMPTLY_S = 5.0
# Enough for each of three processes to get at least two of them, except once in half a million times.
CONNECTIONS = 40
ESTABLISHED = "01"


def settings(processes: int) -> dict[str, str]:
    return {
        "processes": str(processes),
        "group.initial.rebalance.delay.ms": "500",
        "group.min.session.timeout.ms": "1000",
        **BATCH_DENSE.settings,
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetProcess]:
    """Run a broker with three processes that no test kills."""
    server = start_server(VALKEY)
    with KorvetProcess(storage=server.url, settings=settings(3)) as process:
        yield process
    server.remove()


def is_running(pid: int) -> bool:
    """Return True if a process has memory, which a zombie has not."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def replaced(broker: KorvetProcess, gone: int) -> None:
    """Return once another process serves in place of one that has ended."""
    place = broker.wait_for_log(rf"(process \d of \d) \({gone}\) has ended")[1]
    broker.wait_for_log(rf"{place} \((?!{gone}\))\d+\) serves")


def served_by(broker: KorvetProcess, wire: Wire) -> int:
    """Return the process that serves a connection."""
    ask(wire)
    peer = wire.socket.getsockname()[1]
    (pid,) = [pid for pid in broker.workers if peer in clients_of(pid, broker.port)]
    return pid


def ask(wire: Wire) -> None:
    """Send a request; once it is answered, the connection has been accepted."""
    wire.call(MetadataRequest(topics=[], allow_auto_topic_creation=False))


def clients_of(pid: int, port: int) -> set[int]:
    """Return the remote ports of a process's connections to a local port."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed after it was listed
            inodes.add(str(each.readlink()))
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *rest = line.split()
        is_ours = int(local.split(":")[1], 16) == port and f"socket:[{rest[5]}]" in inodes
        if is_ours and state == ESTABLISHED:
            found.add(int(remote.split(":")[1], 16))
    return found


@contextmanager
def connections(broker: KorvetProcess) -> Iterator[dict[int, list[Wire]]]:
    """Open connections, and yield them by the process that serves them; each process has at least one."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.port)) for _ in range(CONNECTIONS)]
        found: dict[int, list[Wire]] = {pid: [] for pid in broker.workers}
        for wire in wires:
            found[served_by(broker, wire)].append(wire)
        assert all(found.values()), found
        yield found


# --- Records ----------------------------------------------------------------------------------------------


def test_record_produced_to_one_process_is_fetched_from_another(
    broker: KorvetProcess, topic: str, report: Report
) -> None:
    create_topic(broker.port, topic)
    with connections(broker) as found:
        report(f"{CONNECTIONS} connections: {sorted(map(len, found.values()))}")
        wires = [each[0] for each in found.values()]
        for number, writer in enumerate(wires):
            writer.send(frame_of(produce_request(topic, BATCH)))
            assert number == produced(writer.receive())
            for reader in wires:
                reader.send(frame_of(fetch_request(topic, number, max_wait_ms=0)))
                assert fetched(reader.receive())

    assert len(found) == 3


def test_parked_fetch_is_answered_when_another_process_appends_a_record(
    broker: KorvetProcess, topic: str, report: Report
) -> None:
    create_topic(broker.port, topic)
    request = frame_of(produce_request(topic, BATCH))
    with connections(broker) as found:
        (reader, asking, *_), (writer, *_), *_ = found.values()
        times_s = []
        for offset in range(30):
            reader.send(frame_of(fetch_request(topic, offset, max_wait_ms=30_000)))
            for _ in range(3):  # connections are served in turn, so the fetch waits after this
                ask(asking)
            began = time.perf_counter()
            writer.send(request)
            assert fetched(reader.receive())
            times_s.append(time.perf_counter() - began)
            produced(writer.receive())
    report(f"p50 {median(times_s) * 1000:.1f} ms, most {max(times_s) * 1000:.1f} ms")

    assert median(times_s) < 0.05


def test_topics_created_and_deleted_by_one_process_are_seen_by_all(broker: KorvetProcess, topic: str) -> None:
    with connections(broker) as found:
        wires = [each[0] for each in found.values()]
        for _ in range(5):
            create_topic(broker.port, topic)
            for number, wire in enumerate(wires):
                wire.send(frame_of(produce_request(topic, BATCH)))
                assert number == produced(wire.receive())
            delete_topic(broker.port, topic)
            for wire in wires:
                wire.send(frame_of(produce_request(topic, BATCH)))
                with pytest.raises(UnknownTopicOrPartition):
                    produced(wire.receive())


def test_idempotent_producer_may_switch_processes(broker: KorvetProcess, topic: str) -> None:
    create_topic(broker.port, topic)
    producer_id, epoch = new_producer_id(broker.port)
    with connections(broker) as found:
        offsets = []
        for sequence in range(5):
            batch = build_batch(
                [(0, 1, None, b"value", ())],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            for wires in found.values():  # a duplicate except for the first one
                wires[0].send(frame_of(produce_request(topic, batch)))
                offsets.append(produced(wires[0].receive()))

    assert [sequence for sequence in range(5) for _ in range(3)] == offsets


# --- Groups -----------------------------------------------------------------------------------------------


class Reader:
    """A consumer that subscribes, in its own thread; it commits whenever there is nothing to receive."""

    changed = threading.Condition()

    def __init__(self, broker: KorvetProcess, group: str, topic: str) -> None:
        self.received: list[tuple[int, int]] = []
        self.partitions: set[int] = set()
        self.committed: dict[int, int] = {}
        self._is_behind = False  # True if something was received and is not committed
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_S)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self.changed:
            self.partitions = {each.partition for each in partitions}
            self.changed.notify_all()

    def _work(self) -> None:
        while not self._stopping.is_set() or self._is_behind:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._received(message)
            elif self._is_behind:
                self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        """Commit and wait for the response: asynchronous commits may overtake each other when they are retried."""
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the next call tries again
        self._is_behind = False
        with self.changed:
            self.committed |= {each.partition: each.offset for each in committed or ()}
            self.changed.notify_all()

    def _received(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._is_behind = True
        with self.changed:
            self.received.append((partition, offset))
            self.changed.notify_all()


@define
class Party:
    """The members of a group."""

    members: list[Reader]

    def until_shared(self, *shares: int) -> None:
        """Return once the members have these numbers of partitions."""
        self._until(lambda: list(shares) == [len(each.partitions) for each in self.members])

    def until_received(self, wanted: set[tuple[int, int]]) -> None:
        """Return once all of these records are received."""
        self._until(lambda: wanted <= {one for each in self.members for one in each.received})

    def until_committed(self, positions: dict[int, int]) -> None:
        """Return once the members have received the responses to the commits of these offsets."""
        self._until(
            lambda: positions.items() <= {one for each in self.members for one in each.committed.items()}
        )

    def close(self) -> None:
        for member in self.members:
            member.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        with Reader.changed:
            in_time = Reader.changed.wait_for(condition, LIMIT_S)
        assert in_time, [(each.partitions, each.received) for each in self.members]


def produce(broker: KorvetProcess, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number in range(each):
        for partition in range(partitions):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(LIMIT_S) == 0


def new_topic(broker: KorvetProcess, topic: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(LIMIT_S)
    return admin


def groups_of_each(processes: int) -> list[str]:
    """Return the name of a group for each process, which coordinates it."""
    names: dict[int, str] = {}
    for number in count():
        name = f"group-{number}"
        names.setdefault(owner_of(name, processes), name)
        if len(names) == processes:
            return [names[index] for index in range(processes)]
    raise AssertionError


def test_group_members_at_several_processes_share_its_partitions(
    broker: KorvetProcess, topic: str, report: Report
) -> None:
    admin = new_topic(broker, topic, 6)
    groups = groups_of_each(3)
    parties = {group: Party([Reader(broker, group, topic) for _ in range(3)]) for group in groups}
    try:
        for party in parties.values():
            party.until_shared(2, 2, 2)
        spread = [len(clients_of(pid, broker.port)) for pid in broker.workers]
        report(f"connections of 9 members and an administrator: {spread}")
        assert all(spread)

        produce(broker, topic, partitions=6, each=20)
        for party in parties.values():
            party.until_received({(partition, offset) for partition in range(6) for offset in range(20)})
        for description in admin.describe_consumer_groups(groups).values():
            found = description.result(LIMIT_S)
            assert ConsumerGroupState.STABLE is found.state
            assert [2, 2, 2] == [len(member.assignment.topic_partitions) for member in found.members]
            assert ["/127.0.0.1"] * 3 == [member.host for member in found.members]
        listed = admin.list_consumer_groups().result(LIMIT_S).valid
        assert set(groups) <= {group.group_id for group in listed}

        for party in parties.values():
            party.members.pop().close()
            party.until_shared(3, 3)
    finally:
        for party in parties.values():
            party.close()
    for deleted in admin.delete_consumer_groups(groups).values():
        assert deleted.result(LIMIT_S) is None
    assert not admin.list_consumer_groups().result(LIMIT_S).valid


def test_group_continues_when_its_owning_process_is_killed(
    start_broker: StartBroker, embedded_folder: Path, topic: str
) -> None:
    broker = start_broker(f"embedded:{embedded_folder}", settings(2))
    new_topic(broker, topic, 4)
    group = groups_of_each(2)[0]
    party = Party([Reader(broker, group, topic) for _ in range(2)])
    try:
        party.until_shared(2, 2)
        produce(broker, topic, partitions=4, each=20)
        party.until_received({(partition, offset) for partition in range(4) for offset in range(20)})

        coordinator = int(broker.wait_for_log(r"process 1 of 2 \((\d+)\) serves")[1])
        os.kill(coordinator, signal.SIGKILL)
        replaced(broker, coordinator)
        produce(broker, topic, partitions=4, each=20)
        party.until_received({(partition, offset) for partition in range(4) for offset in range(40)})
        party.until_committed(dict.fromkeys(range(4), 40))
    finally:
        party.close()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    committed = consumer.committed([TopicPartition(topic, each) for each in range(4)], LIMIT_S)
    consumer.close()

    assert [40] * 4 == [position.offset for position in committed]


# --- Shutdown ---------------------------------------------------------------------------------------------


def test_records_are_stored_once_when_processes_are_killed_in_turn(
    start_broker: StartBroker, embedded_folder: Path, topic: str, report: Report
) -> None:
    broker = start_broker(f"embedded:{embedded_folder}", settings(2))
    create_topic(broker.port, topic)
    unanswered = []
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=True, count=2) as ledgers:
        for _ in range(2):
            ledgers.wait_for_more(300)
            victim = max(broker.workers, key=lambda pid: len(clients_of(pid, broker.port)))
            os.kill(victim, signal.SIGSTOP)
            unanswered.append(ledgers.unanswered_requests())
            os.kill(victim, signal.SIGKILL)
            replaced(broker, victim)
        ledgers.wait_for_more(300)
        ledgers.finish()
    found = consume_all(broker.bootstrap_servers, topic)
    report(f"killed twice with signal 9, requests unanswered: {unanswered}; {len(found)} records")

    assert_each_once_and_in_order(ledgers, found)


def test_terminated_process_is_replaced_and_sigterm_ends_all_processes(
    start_broker: StartBroker, embedded_folder: Path, topic: str
) -> None:
    broker = start_broker(f"embedded:{embedded_folder}", settings(2))
    create_topic(broker.port, topic)
    with connections(broker) as found:
        (pid, (waiting, *_)), (_, (other, *_)) = found.items()
        waiting.send(frame_of(fetch_request(topic, 0, max_wait_ms=60_000)))
        os.kill(pid, signal.SIGTERM)

        assert fetched(waiting.receive()) == b""
        ask(other)
        replaced(broker, pid)
    running = broker.workers
    with connections(broker) as found:
        parked = [wire for wires in found.values() for wire in wires]
        for wire in parked:
            wire.send(frame_of(fetch_request(topic, 0, max_wait_ms=60_000)))
        for _ in range(10):
            first_answer(broker.port)
        began = time.monotonic()
        status = broker.stop()

        assert [b""] * CONNECTIONS == [fetched(wire.receive()) for wire in parked]
    assert status == 0
    assert time.monotonic() - began < PROMPTLY_S
    assert not any(is_running(pid) for pid in running)


def test_killed_parent_ends_all_processes_and_frees_its_port(
    start_broker: StartBroker, embedded_folder: Path, topic: str
) -> None:
    broker = start_broker(f"embedded:{embedded_folder}", settings(2))
    create_topic(broker.port, topic)
    running = broker.workers
    with connections(broker) as found:
        wires = [wires[0] for wires in found.values()]
        wires[0].send(frame_of(produce_request(topic, BATCH)))
        produced(wires[0].receive())
        broker.kill()
        broker.start()  # while the old processes are still shutting down
        assert [b"", b""] == [wire.socket.recv(1) for wire in wires]
    assert not any(is_running(pid) for pid in running)

    with Wire(broker.port) as wire:
        wire.send(frame_of(fetch_request(topic, 0, max_wait_ms=0)))
        assert fetched(wire.receive())
    assert broker.stop() == 0


def test_port_shared_by_processes_of_another_broker_is_in_use(broker: KorvetProcess) -> None:
    command = [sys.executable, "-m", "korvet", "serve", "--storage", broker.storage, "--processes", "2"]
    refused = subprocess.run(
        [*command, "--listeners", broker.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    in_use = f"korvet: cannot listen on {broker.bootstrap_servers}: port {broker.port} is in use\n"
    assert (1, "", in_use) == (refused.returncode, refused.stdout, refused.stderr)
