"""`korvet quotas`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Korvet


@pytest.fixture
def quotas(korvet: Korvet) -> Iterator[Korvet]:
    """Runs commands, and removes the quotas that they leave."""
    yield lambda *arguments: korvet("quotas", *arguments)
    for row in json.loads(korvet("quotas", "list", "--json").out):
        entity = [
            f"--default-{kind}" if row[kind] == "<default>" else f"--{kind}={row[kind]}"
            for kind in ("user", "client-id", "ip")
            if row[kind]
        ]
        assert 0 == korvet("quotas", "remove", *entity, row["quota"]).status


def listed(quotas: Korvet, *arguments: str) -> list[str]:
    """Return the listed quotas, one text each."""
    rows = json.loads(quotas("list", *arguments, "--json").out)
    return [" ".join(f"{name}={value}" for name, value in row.items() if value != "") for row in rows]


def test_quotas_are_set_and_listed(quotas: Korvet) -> None:
    assert 0 == quotas("set", "--user", "alice", "producer_byte_rate=1e6", "request_percentage=2.5").status
    assert 0 == quotas("set", "--default-user", "--client-id", "c", "consumer_byte_rate=10").status
    assert 0 == quotas("set", "--ip", "10.0.0.1", "connection_creation_rate=5").status

    assert [
        "user=<default> client-id=c quota=consumer_byte_rate value=10",
        "ip=10.0.0.1 quota=connection_creation_rate value=5",
        "user=alice quota=producer_byte_rate value=1000000",
        "user=alice quota=request_percentage value=2.5",
    ] == listed(quotas)
    assert ["ip=10.0.0.1 quota=connection_creation_rate value=5"] == listed(quotas, "--ip", "10.0.0.1")
    assert 5 == len(quotas("list").out.splitlines())


def test_quotas_of_an_entity_are_removed(quotas: Korvet) -> None:
    quotas("set", "--user", "alice", "producer_byte_rate=1", "consumer_byte_rate=2")
    quotas("set", "--user", "alice", "--client-id", "c", "producer_byte_rate=3")

    assert 0 == quotas("remove", "--user", "alice", "producer_byte_rate").status
    assert 2 == len(listed(quotas))
    assert 0 == quotas("remove", "--user", "alice").status
    assert ["user=alice client-id=c quota=producer_byte_rate value=3"] == listed(quotas)


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (("set", "producer_byte_rate=1"), 2, "Name a user, a client id or an address."),
        (("set", "--user", "a", "--default-user", "producer_byte_rate=1"), 2, "exclude each other"),
        (("set", "--user", "a", "speed=1"), 2, "'speed' is not one of producer_byte_rate"),
        (("set", "--user", "a", "producer_byte_rate=fast"), 2, "'fast' is not a number."),
        (("set", "--user", "a", "producer_byte_rate=-1"), 1, "must be greater than 0 (INVALID_REQUEST)"),
        (("remove", "--user", "a"), 1, "there is no such quota"),
    ],
)
def test_invalid_command_is_refused(
    quotas: Korvet, arguments: tuple[str, ...], status: int, message: str
) -> None:
    outcome = quotas(*arguments)

    assert status == outcome.status
    assert message in outcome.err
