"""`korvet cluster` and `korvet records`."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import Korvet, Outcome
from tests.processes import KorvetProcess


@pytest.fixture
def topic(request: pytest.FixtureRequest, korvet: Korvet) -> str:
    """A topic with ten records, one per millisecond, in the first of two partitions."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)
    korvet("topics", "create", name, "--partitions", "2", "--set", "offset.mapping=dense")
    lines = "".join(
        f'{{"value": "{n}", "partition": 0, "timestamp": {1_767_225_600_000 + n}}}\n' for n in range(10)
    )
    korvet("produce", name, "--format", "json", stdin=lines)
    return name


def starts(korvet: Korvet, *arguments: str) -> dict[int, tuple[int, int]]:
    """Return the old and the new first offset by partition."""
    rows = json.loads(korvet("records", "delete", *arguments, "--json").out)
    return {row["partition"]: (row["first-offset"], row["new-first-offset"]) for row in rows}


def test_describe_prints_the_cluster_and_its_brokers(korvet: Korvet, broker: KorvetProcess) -> None:
    cluster = json.loads(korvet("cluster", "describe", "--json").out)

    assert [{"broker": 1, "host": "127.0.0.1", "port": broker.port, "rack": None}] == cluster["brokers"]
    assert f"cluster {cluster['cluster']}, controller 1" == korvet("cluster", "describe").out.splitlines()[0]


def test_brokers_are_listed_with_their_shares(korvet: Korvet, broker: KorvetProcess, topic: str) -> None:
    (listed,) = json.loads(korvet("brokers", "list", "--json").out)
    assert (1, broker.port, "controller") == (listed["broker"], listed["port"], listed["role"])
    assert listed["leads"] >= 2
    assert ["1", "127.0.0.1", str(broker.port), "-"] == korvet("brokers", "list").out.splitlines()[1].split()[
        :4
    ]


def test_broker_is_described_with_its_groups_and_settings(
    korvet: Korvet, broker: KorvetProcess, topic: str
) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-earliest", "--execute")
    described = json.loads(korvet("brokers", "describe", "1", "--json").out)

    assert topic in described["groups"]
    settings = {each["name"]: each["value"] for each in described["settings"]}
    assert "0" == settings["group.initial.rebalance.delay.ms"]
    assert "broker.session.timeout.ms" not in settings
    assert topic in korvet("brokers", "describe", "1").out
    unknown = korvet("brokers", "describe", "7")
    assert Outcome(1, "", "korvet: there is no broker 7 (BROKER_NOT_AVAILABLE)\n") == unknown


def test_log_dirs_prints_the_size_of_each_partition(korvet: Korvet, topic: str) -> None:
    rows = json.loads(korvet("cluster", "log-dirs", "--topic", topic, "--json").out)

    assert [(topic, 0), (topic, 1)] == [(row["topic"], row["partition"]) for row in rows]
    assert rows[0]["size"] > rows[1]["size"] == 0
    printed = korvet("cluster", "log-dirs", "--topic", topic).out
    assert f"total size: {rows[0]['size']} B" == printed.splitlines()[-1]


def test_log_dirs_of_an_unknown_broker_is_one_line(korvet: Korvet) -> None:
    assert Outcome(1, "", "korvet: there is no broker 7 (BROKER_NOT_AVAILABLE)\n") == korvet(
        "cluster", "log-dirs", "--broker", "7"
    )


def test_records_before_an_offset_are_deleted_from_one_partition(korvet: Korvet, topic: str) -> None:
    assert {0: (0, 4)} == starts(korvet, topic, "--before-offset", "4", "--partition", "0")

    assert "4\n5\n6\n7\n8\n9\n" == korvet("consume", topic).out
    assert {0: (4, 4)} == starts(korvet, topic, "--before-offset", "2", "--partition", "0")


def test_records_before_a_time_are_deleted(korvet: Korvet, topic: str) -> None:
    assert {0: (0, 7), 1: (0, 0)} == starts(korvet, topic, "--before-time", "2026-01-01T00:00:00.007Z")

    assert "7\n8\n9\n" == korvet("consume", topic).out


def test_dry_run_deletes_nothing(korvet: Korvet, topic: str) -> None:
    assert {0: (0, 10), 1: (0, 0)} == starts(korvet, topic, "--all", "--dry-run")

    assert 10 == len(korvet("consume", topic).out.splitlines())
    assert {0: (0, 10), 1: (0, 0)} == starts(korvet, topic, "--all")
    assert Outcome(0, "") == korvet("consume", topic)


@pytest.mark.parametrize("options", [[], ["--all", "--before-offset", "1"]])
def test_deletion_needs_one_bound(korvet: Korvet, options: list[str]) -> None:
    done = korvet("records", "delete", "t", *options)

    assert 2 == done.status
    assert "Name one of --before-offset, --before-time and --all." in done.err


def test_offset_beyond_the_end_is_refused(korvet: Korvet, topic: str) -> None:
    done = korvet("records", "delete", topic, "--before-offset", "11", "--partition", "0")

    assert (1, 1) == (done.status, done.err.count("\n"))
    assert "(OFFSET_OUT_OF_RANGE)" in done.err
