"""`korvet acls`, against a broker that asks an authorizer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from korvet.security.authorizer import STANDARD
from tests.cli.conftest import Korvet
from tests.processes import KorvetProcess

SETTINGS = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
ALICE, BOB = "User:alice", "User:bob"


@pytest.fixture(scope="module")
def secured() -> Iterator[KorvetProcess]:
    with KorvetProcess(settings=SETTINGS) as process:
        yield process


@pytest.fixture
def acls(secured: KorvetProcess, korvet: Korvet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Korvet]:
    """Runs commands against the secured broker, and removes their ACLs."""
    monkeypatch.setenv("KORVET_BOOTSTRAP_SERVERS", secured.bootstrap_servers)
    yield lambda *arguments: korvet("acls", *arguments)
    everything = ("--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster")
    names = ("--topic", "orders", "--topic", "or", "--group", "g")
    assert 0 == korvet("acls", "remove", *everything, *names, "--resource-pattern-type", "any").status


def listed(acls: Korvet, *arguments: str) -> list[str]:
    """Return the listed ACLs, one text each."""
    rows = json.loads(acls("list", *arguments, "--json").out)
    return [" ".join(row.values()) for row in rows]


def test_acl_is_added_and_listed(acls: Korvet) -> None:
    added = acls("add", "--allow-principal", ALICE, "--operation", "Read", "--topic", "orders")

    assert 0 == added.status
    assert added.out == acls("list").out
    assert ["topic orders literal allow User:alice read *"] == listed(acls)


def test_acls_of_a_producer(acls: Korvet) -> None:
    acls("add", "--allow-principal", ALICE, "--producer", "--idempotent", "--topic", "orders")

    assert [
        "topic orders literal allow User:alice write *",
        "topic orders literal allow User:alice create *",
        "topic orders literal allow User:alice describe *",
        "cluster kafka-cluster literal allow User:alice idempotent_write *",
    ] == listed(acls)


def test_acls_of_a_consumer(acls: Korvet) -> None:
    acls("add", "--allow-principal", ALICE, "--consumer", "--topic", "orders", "--group", "g")

    assert [
        "topic orders literal allow User:alice read *",
        "topic orders literal allow User:alice describe *",
        "group g literal allow User:alice read *",
    ] == listed(acls)


def test_denial_for_a_host_and_a_prefix(acls: Korvet) -> None:
    acls(
        *("add", "--deny-principal", ALICE, "--deny-host", "10.0.0.1", "--topic", "or"),
        *("--resource-pattern-type", "prefixed", "--operation", "DescribeConfigs"),
    )

    assert ["topic or prefixed deny User:alice describe_configs 10.0.0.1"] == listed(acls)
    assert listed(acls, "--topic", "orders", "--resource-pattern-type", "match") == listed(acls)
    assert [] == listed(acls, "--topic", "orders")


def test_acls_of_a_principal_are_listed_and_removed(acls: Korvet) -> None:
    acls("add", "--allow-principal", ALICE, "--allow-principal", BOB, "--topic", "orders")
    before = listed(acls, "--principal", BOB)
    removed = acls("remove", "--allow-principal", BOB, "--topic", "orders")

    assert ["topic orders literal allow User:bob all *"] == before
    assert "1 removed\n" == removed.out
    assert ["topic orders literal allow User:alice all *"] == listed(acls)


def test_all_acls_of_a_resource_are_removed(acls: Korvet) -> None:
    acls("add", "--allow-principal", ALICE, "--consumer", "--topic", "orders", "--group", "g")

    assert "2 removed\n" == acls("remove", "--topic", "orders").out
    assert ["group g literal allow User:alice read *"] == listed(acls)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("add", "--topic", "orders"), "Name a resource, and --allow-principal or --deny-principal."),
        (("add", "--allow-principal", ALICE), "Name a resource, and --allow-principal or --deny-principal."),
        (("remove",), "Name a resource."),
        (("add", "--operation", "Fly"), "'Fly' is not one of"),
    ],
)
def test_incomplete_command_is_refused(acls: Korvet, arguments: tuple[str, ...], message: str) -> None:
    outcome = acls(*arguments)

    assert 2 == outcome.status
    assert message in outcome.err


def test_invalid_principal_is_the_brokers_error(acls: Korvet) -> None:
    outcome = acls("add", "--allow-principal", "alice", "--topic", "orders")

    assert 1 == outcome.status
    assert "Could not parse principal from `alice`" in outcome.err
    assert "INVALID_REQUEST" in outcome.err


def test_broker_without_authorizer_has_no_acls(korvet: Korvet) -> None:
    outcome = korvet("acls", "list")

    assert 1 == outcome.status
    assert "No Authorizer is configured. (SECURITY_DISABLED)" in outcome.err
