"""`korvet transactions` and `korvet consume --isolation`, with producers of librdkafka."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from tests.cli.conftest import Korvet, Outcome
from tests.processes import KorvetProcess

LIMIT_S = 30.0


@pytest.fixture
def topic(request: pytest.FixtureRequest, korvet: Korvet) -> str:
    """A topic for this test only, with two partitions."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)
    korvet("topics", "create", name, "--partitions", "2", "--set", "offset.mapping=dense")
    return name


@contextmanager
def transaction(broker: KorvetProcess, transactional_id: str) -> Iterator[Producer]:
    """Begin a transaction, which stays open unless the block ends it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    yield producer


def test_open_transaction_is_listed_and_described(broker: KorvetProcess, korvet: Korvet, topic: str) -> None:
    name = f"{topic}-id"
    with transaction(broker, name) as producer:
        producer.produce(topic, b"a", partition=1)
        producer.flush()
        (row,) = json.loads(korvet("transactions", "list", "--matching", name, "--json").out)
        assert (name, 1, "Ongoing") == (row["transactional-id"], row["coordinator"], row["state"])
        table = korvet("transactions", "list", "--producer-id", str(row["producer-id"])).out
        assert [["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]] == [
            table.splitlines()[0].split()
        ]
        assert [name, "1", str(row["producer-id"]), "Ongoing"] == table.splitlines()[1].split()
        assert (
            "" == korvet("transactions", "list", "--state", "Dead", "--matching", name).out.partition("\n")[2]
        )
        assert [] == json.loads(
            korvet("transactions", "list", "--longer-than", "1h", "--matching", name, "--json").out
        )

        (described,) = json.loads(korvet("transactions", "describe", name, "--json").out)
        assert (broker.bootstrap_servers, row["producer-id"], 0, 60_000, [f"{topic}-1"]) == tuple(
            described[each] for each in ("coordinator", "producer-id", "epoch", "timeout-ms", "partitions")
        )
        assert 0 <= described["open-for-ms"] < 60_000
        producer.commit_transaction(LIMIT_S)

    lines = korvet("transactions", "describe", name).out.splitlines()
    assert ["CompleteCommit", "60000", "-", "-"] == lines[1].split()[-4:]


def test_unknown_transactional_id_is_an_error(korvet: Korvet) -> None:
    outcome = korvet("transactions", "describe", "nobody")

    assert 1 == outcome.status
    assert "transactional id nobody: " in outcome.err
    assert "Traceback" not in outcome.err


def test_invalid_pattern_is_an_error(korvet: Korvet) -> None:
    outcome = korvet("transactions", "list", "--matching", "(")

    assert 1 == outcome.status
    assert "regular expression" in outcome.err


def test_consume_reads_only_what_is_committed(broker: KorvetProcess, korvet: Korvet, topic: str) -> None:
    with transaction(broker, f"{topic}-id") as producer:
        for number in range(3):
            producer.produce(topic, f"committed {number}".encode(), partition=0)
        producer.commit_transaction(LIMIT_S)
        producer.begin_transaction()
        for number in range(2000):
            producer.produce(topic, f"aborted {number}".encode() * 100, partition=0)
        producer.flush()
        producer.abort_transaction(LIMIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"committed 3", partition=0)
        producer.commit_transaction(LIMIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        producer.flush()

        lines = korvet("consume", topic, "--isolation", "read_committed").out.splitlines()
        assert [f"committed {number}" for number in range(4)] == lines
        last = korvet("consume", topic, "--isolation", "read_committed", "--last", "2").out.splitlines()
        assert ["committed 2", "committed 3"] == last
        member = ("--group", f"{topic}-group", "--isolation", "read_committed")
        assert lines == korvet("consume", topic, *member).out.splitlines()
        everything = korvet("consume", topic).out.splitlines()
        assert (2005, "open") == (len(everything), everything[-1])
        assert everything == korvet("consume", topic, "--isolation", "read_uncommitted").out.splitlines()
        producer.abort_transaction(LIMIT_S)


def test_transaction_of_a_living_coordinator_does_not_hang(
    broker: KorvetProcess, korvet: Korvet, topic: str
) -> None:
    with transaction(broker, f"{topic}-id") as producer:
        producer.produce(topic, b"a", partition=0)
        producer.flush()
        found = korvet("transactions", "find-hanging", topic, "--longer-than", "0s", "--json")
        assert [] == json.loads(found.out)

        aborted = korvet("transactions", "abort", topic, "0", "5")
        assert 2 == aborted.status
        assert f"{topic}-0 has no open transaction that begins at offset 5." in aborted.err
        producer.commit_transaction(LIMIT_S)
    assert Outcome(0, "a\n") == korvet("consume", topic, "--isolation", "read_committed")


def test_hanging_transaction_is_found_and_aborted(broker: KorvetProcess, korvet: Korvet, topic: str) -> None:
    with transaction(broker, f"{topic}-id") as producer:
        producer.produce(topic, b"a", partition=0)
        producer.produce(topic, b"b", partition=1)
        producer.flush()
        assert Outcome(0, "") == korvet("transactions", "abort", topic, "0", "0")
        # Partition 1 is in the transaction of the coordinator, which ends it.
        assert [] == json.loads(
            korvet("transactions", "find-hanging", topic, "--longer-than", "0s", "--json").out
        )
        producer.abort_transaction(LIMIT_S)
    assert Outcome(0, "") == korvet("consume", topic, "--isolation", "read_committed")


def committed(korvet: Korvet, topic: str) -> list[str]:
    """Return the committed lines once no transaction is open in the topic."""
    deadline = time.monotonic() + LIMIT_S
    while "Ongoing" in korvet("transactions", "list", "--matching", f"{topic}.*").out or "Prepare" in (
        korvet("transactions", "list", "--matching", f"{topic}.*").out
    ):
        assert time.monotonic() < deadline, "the transaction did not end"
    return sorted(korvet("consume", topic, "--isolation", "read_committed").out.splitlines())


def test_lines_are_produced_in_one_transaction(korvet: Korvet, topic: str) -> None:
    one_id = ("--transactional-id", f"{topic}-id")
    assert Outcome(0, "") == korvet("produce", topic, *one_id, stdin="a\nb\nc\n")
    assert ["a", "b", "c"] == committed(korvet, topic)
    lines = "".join(f'{{"value": {number}}}\n' for number in range(50_000)) + "not json\n"
    refused = korvet("produce", topic, *one_id, "--format", "json", stdin=lines)
    assert (1, True) == (refused.status, "line 50001" in refused.err)
    assert ["a", "b", "c"] == committed(korvet, topic)
    limited = ("--transaction-timeout", "10m")
    assert Outcome(0, "") == korvet("produce", topic, *one_id, *limited, stdin="d\n")
    assert ["a", "b", "c", "d"] == committed(korvet, topic)
    assert 50_004 == len(korvet("consume", topic).out.splitlines())


@pytest.mark.parametrize(
    "options, reason",
    [
        (("--transaction-timeout", "1m"), "--transaction-timeout needs --transactional-id."),
        (("--transactional-id", "x", "--acks", "1"), "--transactional-id needs --acks all."),
        (("--transactional-id", "x", "--transaction-timeout", "soon"), "'soon' is not a duration."),
        (("--transactional-id", "x", "--transaction-timeout", "30d"), "--transaction-timeout is above 0"),
        (("--transactional-id", "x", "--transaction-timeout", "0s"), "--transaction-timeout is above 0"),
    ],
)
def test_options_of_a_transaction_that_exclude_each_other(
    korvet: Korvet, topic: str, options: tuple[str, ...], reason: str
) -> None:
    refused = korvet("produce", topic, *options, stdin="a\n")

    assert (2, True) == (refused.status, reason in refused.err)


def test_timeout_above_the_maximum_is_refused(korvet: Korvet, topic: str) -> None:
    refused = korvet(
        "produce", topic, "--transactional-id", f"{topic}-id", "--transaction-timeout", "20d", stdin="a\n"
    )

    assert 1 == refused.status
    assert "INVALID_TRANSACTION_TIMEOUT" in refused.err or "timeout" in refused.err
    assert [] == committed(korvet, topic)
