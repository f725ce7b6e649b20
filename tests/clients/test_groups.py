"""Consumers that subscribe: they share partitions, join, leave, crash, and outlive the broker."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record, eventually
from tests.clients.members import COOPERATIVE, KINDS, MEMBERS, AioKafkaMember, ConfluentMember, Member, Party
from tests.processes import KorvetProcess

PARTITIONS = 4
SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
}

# kafka-python does not close sockets that failed to connect; `collected` collects them before other tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
every_member = pytest.mark.parametrize("kind", MEMBERS, ids=lambda kind: kind.id)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def party(broker: KorvetProcess, topic: str) -> Iterator[Party]:
    with new_party(broker, topic) as party:
        yield party


def new_party(broker: KorvetProcess, topic: str, *, session_ms: int = 10_000) -> Party:
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=PARTITIONS)
    return Party(broker.bootstrap_servers, topic, session_ms=session_ms)


def produce(party: Party, numbers: range) -> list[bytes]:
    """Produce these numbers to all partitions in turn. Return their values."""
    records = [Record(b"%d" % number, partition=number % PARTITIONS) for number in numbers]
    Confluent(party.bootstrap_servers).produce(party.topic, records)
    return sorted(record.value or b"" for record in records)


def described(party: Party) -> ConsumerGroupDescription:
    admin = AdminClient({"bootstrap.servers": party.bootstrap_servers})
    found: ConsumerGroupDescription = admin.describe_consumer_groups([party.group_id])[party.group_id].result(
        LIMIT_S
    )
    return found


def wait_until_committed(party: Party) -> None:
    """Return once the members have committed everything, which also means that they have found their coordinator."""
    # aiokafka's close never ends before that: its last commit waits for a coordinator lookup, which a closed client no
    # longer makes.
    consumer = Consumer({"bootstrap.servers": party.bootstrap_servers, "group.id": party.group_id})
    partitions = [TopicPartition(party.topic, number) for number in range(PARTITIONS)]
    try:
        ends = [consumer.get_watermark_offsets(each, timeout=LIMIT_S)[1] for each in partitions]
        eventually(lambda: [each.offset for each in consumer.committed(partitions, timeout=LIMIT_S)], ends)
    finally:
        consumer.close()


@every_member
def test_two_members_that_join_concurrently_receive_every_record_once(
    party: Party, kind: type[Member]
) -> None:
    values = produce(party, range(100))
    for _ in range(2):
        party.add(kind)
    party.wait_until(lambda: party.share(PARTITIONS) and len(party.received()) >= 100)

    assert [2, 2] == [len(member.assignment) for member in party.members]
    assert values == sorted(party.received())


@every_member
def test_remaining_member_takes_over_partitions_at_committed_offsets(
    party: Party, kind: type[Member]
) -> None:
    first, second = party.add(kind), party.add(kind)
    party.wait_until(lambda: party.share(PARTITIONS))
    before = produce(party, range(100))
    party.wait_until(lambda: len(party.received()) >= 100)
    party.remove(second)
    party.wait_until(lambda: len(first.assignment) == PARTITIONS)
    after = produce(party, range(100, 200))
    party.wait_until(lambda: len(first.received + second.received) >= 200)

    assert sorted(before + after) == sorted(first.received + second.received)


def test_members_of_three_libraries_share_one_group(party: Party) -> None:
    for kind in MEMBERS:
        party.add(kind)
    party.wait_until(lambda: party.share(PARTITIONS))
    values = produce(party, range(60))
    party.wait_until(lambda: len(party.received()) >= 60)
    group = described(party)

    assert values == sorted(party.received())
    assert (ConsumerGroupState.STABLE, 3, "range") == (
        group.state,
        len(group.members),
        group.partition_assignor,
    )


@every_member
def test_partitions_are_revoked_before_they_are_assigned_again(party: Party, kind: type[Member]) -> None:
    first = party.add(kind)
    party.wait_until(lambda: len(first.assignment) == PARTITIONS)
    party.add(kind)
    party.wait_until(lambda: party.share(PARTITIONS))
    events = [event for event in first.events if event not in ("revoked", "assigned")]

    assert ["assigned 0, 1, 2, 3", "revoked 0, 1, 2, 3"] == events[:2]
    assert events[2] in ("assigned 0, 1", "assigned 2, 3")


@pytest.mark.parametrize("kind", COOPERATIVE, ids=lambda kind: kind.id)
def test_cooperative_members_revoke_only_moved_partitions(party: Party, kind: type[Member]) -> None:
    first = party.add(kind, cooperative=True)
    party.wait_until(lambda: len(first.assignment) == PARTITIONS)
    second = party.add(kind, cooperative=True)
    party.wait_until(lambda: party.share(PARTITIONS))
    revoked = [event for event in first.events if event.startswith("revoked ")]

    assert 1 == len(revoked)
    assert 2 == len(revoked[0].removeprefix("revoked ").split(", "))
    assert not [event for event in second.events if event.startswith("revoked ")]


@every_kind
def test_restarted_static_member_causes_no_rebalance(party: Party, kind: type[Member]) -> None:
    first = party.add(kind, instance="first")
    second = party.add(kind, instance="second")
    party.wait_until(lambda: party.share(PARTITIONS))
    events, had = list(first.events), set(second.assignment)
    party.remove(second)
    second = party.add(kind, instance="second")
    party.wait_until(lambda: second.assignment == had)
    values = produce(party, range(40))
    party.wait_until(lambda: len(party.received()) >= 40)

    assert events == first.events
    assert values == sorted(party.received())


def test_partitions_of_a_killed_consumer_are_reassigned(broker: KorvetProcess, topic: str) -> None:
    with new_party(broker, topic, session_ms=3000) as party:
        member = party.add(ConfluentMember)
        party.wait_until(lambda: len(member.assignment) == PARTITIONS)
        with killable_consumer(party) as other:
            assert other.stdout is not None
            assert "assigned" in other.stdout.readline()
            party.wait_until(lambda: len(member.assignment) == PARTITIONS // 2)
            other.kill()
            assert -9 == other.wait(LIMIT_S)
        party.wait_until(lambda: len(member.assignment) == PARTITIONS)
        values = produce(party, range(40))
        party.wait_until(lambda: len(party.received()) >= 40)

        assert values == sorted(party.received())


def killable_consumer(party: Party) -> subprocess.Popen[str]:
    """Start a member in another process, which prints a line once it has partitions."""
    program = (
        "from confluent_kafka import Consumer\n"
        f"consumer = Consumer({{'bootstrap.servers': {party.bootstrap_servers!r},"
        f" 'group.id': {party.group_id!r}, 'session.timeout.ms': {party.session_ms},"
        " 'heartbeat.interval.ms': 300, 'partition.assignment.strategy': 'range'})\n"
        f"consumer.subscribe([{party.topic!r}], on_assign=lambda *_: print('assigned', flush=True))\n"
        "while True: consumer.poll(0.1)\n"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_admin_clients_describe_reset_and_delete_groups(party: Party) -> None:
    admin = AdminClient({"bootstrap.servers": party.bootstrap_servers})
    member = party.add(ConfluentMember, client_id="seen")
    party.wait_until(lambda: len(member.assignment) == PARTITIONS)
    (seen,) = described(party).members
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(LIMIT_S).valid}
    produce(party, range(40))
    party.wait_until(lambda: len(member.received) >= 40)
    with pytest.raises(Exception, match="NON_EMPTY_GROUP|non-empty|not empty"):
        admin.delete_consumer_groups([party.group_id])[party.group_id].result(LIMIT_S)
    party.remove(member)
    empty = described(party)
    admin.delete_consumer_groups([party.group_id])[party.group_id].result(LIMIT_S)
    left = [group.group_id for group in admin.list_consumer_groups().result(LIMIT_S).valid]

    assert ("seen", "/127.0.0.1", PARTITIONS) == (
        seen.client_id,
        seen.host,
        len(seen.assignment.topic_partitions),
    )
    assert ConsumerGroupState.STABLE == listed[party.group_id].state
    assert (ConsumerGroupState.EMPTY, []) == (empty.state, empty.members)
    assert party.group_id not in left
    assert Confluent(party.bootstrap_servers).committed(party.group_id, party.topic) is None


@pytest.fixture
def killable_broker() -> Iterator[KorvetProcess]:
    """Run a separate broker, whose storage survives it."""
    folder = tempfile.mkdtemp(prefix="kg-")
    try:
        with KorvetProcess(storage=f"embedded:{folder}/data", settings=SETTINGS) as process:
            yield process
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@every_kind
def test_killed_and_restarted_broker_causes_no_rebalance(
    killable_broker: KorvetProcess, topic: str, kind: type[Member]
) -> None:
    with new_party(killable_broker, topic) as party:
        for _ in range(2):
            party.add(kind)
        party.wait_until(lambda: party.share(PARTITIONS))
        before = produce(party, range(40))
        party.wait_until(lambda: len(party.received()) >= 40)
        events = [list(member.events) for member in party.members]
        members = {member.member_id for member in described(party).members}
        for _ in range(2):
            killable_broker.kill()
            killable_broker.start()
        after = produce(party, range(40, 80))
        party.wait_until(lambda: {*before, *after} <= set(party.received()))
        wait_until_committed(party)
        group = described(party)

        assert events == [member.events for member in party.members]
        assert (ConsumerGroupState.STABLE, members) == (
            group.state,
            {member.member_id for member in group.members},
        )


def test_members_survive_a_broker_drain_and_restart(killable_broker: KorvetProcess, topic: str) -> None:
    with new_party(killable_broker, topic) as party:
        member = party.add(AioKafkaMember)
        party.wait_until(lambda: len(member.assignment) == PARTITIONS)
        assert 0 == killable_broker.stop()
        killable_broker.start()
        values = produce(party, range(40))
        party.wait_until(lambda: len(member.received) >= 40)
        wait_until_committed(party)

        assert values == sorted(member.received)
