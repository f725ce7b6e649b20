"""Committed offsets of consumers that assign themselves partitions."""

from __future__ import annotations

from tests.clients.conftest import ADMIN_CLIENTS
from tests.clients.interface import AdminClient, Record
from tests.clients.test_produce import records_of
from tests.processes import KorvetProcess

RECORDS = [Record(value=b"%d" % number) for number in range(10)]


def test_group_resumes_at_its_committed_offset(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    admin_client.produce(topic, RECORDS)
    half = admin_client.consume(topic, 5)
    admin_client.commit("readers", topic, half[-1].offset + 1)

    assert RECORDS[5:] == records_of(admin_client.resume("readers", topic, 5))


def test_committed_offset_is_read_back_with_its_metadata(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    admin_client.produce(topic, RECORDS)
    offset = admin_client.consume(topic, 3)[-1].offset + 1
    admin_client.commit("readers", topic, offset, metadata="three of ten")

    assert (offset, "three of ten") == admin_client.committed("readers", topic)


def test_group_without_commits_has_no_committed_offset(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    admin_client.produce(topic, RECORDS)

    assert admin_client.committed(f"never-{topic}", topic) is None


def test_groups_have_independent_committed_offsets_that_may_decrease(
    admin_client: AdminClient, topic: str
) -> None:
    admin_client.create_topic(topic)
    admin_client.produce(topic, RECORDS)
    offsets = [one.offset for one in admin_client.consume(topic, 10)]
    admin_client.commit("ahead", topic, offsets[9])
    admin_client.commit("behind", topic, offsets[7])
    admin_client.commit("behind", topic, offsets[2])

    assert (offsets[9], "") == admin_client.committed("ahead", topic)
    assert (offsets[2], "") == admin_client.committed("behind", topic)


def test_every_client_sees_offsets_committed_by_every_other(broker: KorvetProcess, topic: str) -> None:
    clients = [kind(broker.bootstrap_servers) for kind in ADMIN_CLIENTS]
    clients[0].create_topic(topic)
    clients[0].produce(topic, RECORDS)
    offsets = [one.offset for one in clients[0].consume(topic, 10)]
    for index, committer in enumerate(clients):
        committer.commit("shared", topic, offsets[index + 1], metadata=committer.id)
        found = [reader.committed("shared", topic) for reader in clients]

        # confluent-kafka also commits the zero byte that ends a string in C, and other clients show it.
        assert [(offsets[index + 1], committer.id)] * 3 == [
            position and (position[0], position[1].removesuffix("\0")) for position in found
        ]
