"""`korvet configs` and `korvet topics alter`, against a broker in a separate process."""

from __future__ import annotations

import json
import re

import pytest

from korvet.broker.topics import SETTINGS
from tests.cli.conftest import Korvet, Outcome


@pytest.fixture
def topic(request: pytest.FixtureRequest, korvet: Korvet) -> str:
    """A topic for this test only."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)
    assert Outcome(0, "") == korvet("topics", "create", name, "--set", "segment.ms=5")
    return name


def test_all_settings_are_listed(korvet: Korvet, topic: str) -> None:
    listed = json.loads(korvet("configs", "list", topic, "--json").out)
    head, *rows = korvet("configs", "list", topic).out.splitlines()

    assert sorted(SETTINGS) == [each["name"] for each in listed]
    (segment,) = (each for each in listed if each["name"] == "segment.ms")
    assert segment.pop("documentation").endswith("but it has no effect.")
    assert {
        "name": "segment.ms", "value": "5", "source": "topic", "read-only": False, "sensitive": False
    } == segment  # fmt: skip
    assert ["NAME", "VALUE", "SOURCE", "READ-ONLY"] == head.split()
    assert ["segment.ms", "5", "topic", "no"] in [row.split() for row in rows]
    assert ["max.message.bytes", "1048588", "default", "no"] in [row.split() for row in rows]


def test_set_only_lists_configured_settings(korvet: Korvet, topic: str) -> None:
    listed = json.loads(korvet("configs", "list", topic, "--set-only", "--json").out)

    assert ["segment.ms"] == [each["name"] for each in listed]


def test_values_are_printed_in_the_requested_order(korvet: Korvet, topic: str) -> None:
    assert Outcome(0, "5\n604800000\n") == korvet("configs", "get", topic, "segment.ms", "retention.ms")
    told = json.loads(korvet("configs", "get", topic, "retention.ms", "--json").out)
    assert ["604800000"] == [each["value"] for each in told]


def test_unknown_setting_is_reported(korvet: Korvet, topic: str) -> None:
    outcome = korvet("configs", "get", topic, "segment.ms", "segment.mss")

    assert (1, "", f"korvet: {topic} has no setting segment.mss\n") == (
        outcome.status,
        outcome.out,
        outcome.err,
    )


def test_broker_settings_are_printed_without_secrets(korvet: Korvet) -> None:
    assert Outcome(0, "1\n(hidden)\n(not set)\n") == korvet(
        "configs", "get", "broker:1", "node.id", "storage", "broker.rack"
    )


def test_settings_are_set_and_unset(korvet: Korvet, topic: str) -> None:
    done = korvet("configs", "set", topic, "retention.ms=1000", "flush.ms=7", "--unset", "segment.ms")

    assert Outcome(0, "") == done
    assert (
        "1000\n7\n604800000\n"
        == korvet("configs", "get", topic, "retention.ms", "flush.ms", "segment.ms").out
    )


def test_list_values_are_appended_and_subtracted(korvet: Korvet, topic: str) -> None:
    name = "leader.replication.throttled.replicas"
    korvet("configs", "set", topic, "--append", f"{name}=0:1,1:1")
    assert "0:1,1:1\n" == korvet("configs", "get", topic, name).out

    korvet("configs", "set", topic, "--subtract", f"{name}=0:1")

    assert "1:1\n" == korvet("configs", "get", topic, name).out


def test_dry_run_alters_no_setting(korvet: Korvet, topic: str) -> None:
    assert 0 == korvet("configs", "set", topic, "retention.ms=1", "--dry-run").status
    assert 1 == korvet("configs", "set", topic, "retention.ms=x", "--dry-run").status
    assert "604800000\n" == korvet("configs", "get", topic, "retention.ms").out


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (("retention.ms=soon",), 1, "(accepted: a whole number, at least -1) (INVALID_CONFIG)"),
        (("storage.layout=batch",), 1, "fixed when the topic was created"),
        (("retention.ms",), 2, "'retention.ms' is not NAME=VALUE"),
        ((), 2, "There is nothing to alter."),
        (("retention.ms=1", "--unset", "retention.ms"), 2, "retention.ms is named twice"),
    ],
)
def test_refused_settings_are_reported_in_one_line(
    korvet: Korvet, topic: str, arguments: tuple[str, ...], status: int, words: str
) -> None:
    outcome = korvet("configs", "set", topic, *arguments)

    assert (status, "", 1) == (outcome.status, outcome.out, outcome.err.count("\n"))
    assert words in outcome.err


@pytest.mark.parametrize(
    "resource, status, words",
    [
        ("nobody", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("a b", 1, "INVALID_TOPIC_EXCEPTION"),
        ("broker:one", 2, "'one' is not a broker id"),
        ("broker:7", 1, "there is no broker 7 (BROKER_NOT_AVAILABLE)"),
    ],
)
def test_missing_resources_are_reported_in_one_line(
    korvet: Korvet, resource: str, status: int, words: str
) -> None:
    outcome = korvet("configs", "list", resource)

    assert (status, "", 1) == (outcome.status, outcome.out, outcome.err.count("\n"))
    assert words in outcome.err


def test_broker_settings_that_are_not_dynamic_cannot_be_altered(korvet: Korvet) -> None:
    outcome = korvet("configs", "set", "broker:1", "node.id=1")

    assert 1 == outcome.status
    assert "Cannot update these configs dynamically: node.id" in outcome.err


# --- topics alter -------------------------------------------------------------------------------------------


def test_topic_is_altered(korvet: Korvet, topic: str) -> None:
    done = korvet(
        "topics", "alter", topic, "--partitions", "3", "--set", "retention.ms=1000", "--unset", "segment.ms"
    )

    assert Outcome(0, "") == done
    assert 3 == len(json.loads(korvet("topics", "describe", topic, "--json").out)[0]["partitions"])
    assert "1000\n604800000\n" == korvet("configs", "get", topic, "retention.ms", "segment.ms").out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--partitions", "1", "--set", "retention.ms=1"), "INVALID_PARTITIONS"),
        (("--partitions", "2", "--set", "retention.ms=x"), "INVALID_CONFIG"),
        (("--partitions", "2", "--set", "retention.ms=1", "--dry-run"), ""),
    ],
)
def test_topic_alterations_are_atomic(
    korvet: Korvet, topic: str, arguments: tuple[str, ...], words: str
) -> None:
    outcome = korvet("topics", "alter", topic, *arguments)

    assert (1 if words else 0) == outcome.status
    assert words in outcome.err
    assert 1 == len(json.loads(korvet("topics", "describe", topic, "--json").out)[0]["partitions"])
    assert "604800000\n" == korvet("configs", "get", topic, "retention.ms").out


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "There is nothing to alter."),
        (("--set", "segment.ms=1", "--unset", "segment.ms"), "segment.ms is named twice."),
    ],
)
def test_invalid_alterations_are_refused_before_a_request(
    korvet: Korvet, topic: str, arguments: tuple[str, ...], words: str
) -> None:
    outcome = korvet("topics", "alter", topic, *arguments)

    assert 2 == outcome.status
    assert words in outcome.err
