"""`korvet fault`, against a broker with a fault port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from korvet.testing.clients import Confluent
from tests.cli.conftest import Korvet, Outcome
from tests.cli.test_serve import refused
from tests.processes import KorvetProcess

PORT = r"tests inject faults through port (\d+)"


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[KorvetProcess, str]]:
    with KorvetProcess(options=["--fault-port", "0"]) as process:
        yield process, process.wait_for_log(PORT)[1]


@pytest.fixture
def port(faulty: tuple[KorvetProcess, str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KORVET_FAULT_PORT", faulty[1])
    return faulty[1]


def test_fault_is_added_listed_and_ended(korvet: Korvet, port: str) -> None:
    added = korvet("fault", "add", "error", "NOT_COORDINATOR", "--api", "Heartbeat", "--count", "2")
    number = added.out.strip()

    assert Outcome(0, f"{number}\n") == added
    assert [number, "error", "0", "True", "api=Heartbeat", "count=2", "error=NOT_COORDINATOR"] in [
        row.split() for row in korvet("fault", "list").out.splitlines()
    ]
    assert Outcome(0, "") == korvet("fault", "end", number)
    assert [] == json.loads(korvet("fault", "list", "--json").out)
    assert Outcome(1, "", f"korvet: there is no fault {number}\n") == korvet("fault", "end", number)


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (("add", "fly"), 1, "korvet: there is no fault 'fly'; there are error, delay"),
        (("add", "delay", "soon"), 1, "korvet: delay: ms is 'soon'; accepted: a whole number"),
        (("add", "freeze", "now"), 2, "freeze has no argument."),
        (("end",), 2, "Name a fault, or --all."),
        (("expire-member", "missing"), 1, "korvet: Group missing not found. (GROUP_ID_NOT_FOUND)"),
        (("list", "--port", "1"), 1, "korvet: no broker answers on fault port 1: "),
    ],
    ids=["kind", "milliseconds", "argument", "end", "group", "port"],
)
def test_invalid_use_is_one_line(
    korvet: Korvet, port: str, arguments: tuple[str, ...], status: int, message: str
) -> None:
    outcome = korvet("fault", *arguments)

    assert status == outcome.status
    assert message in outcome.err
    assert 1 == outcome.err.count("\n")


@pytest.mark.clients
def test_client_meets_a_fault_of_the_port(
    korvet: Korvet, port: str, faulty: tuple[KorvetProcess, str]
) -> None:
    with ExitStack() as closing:
        producer = Confluent(faulty[0].bootstrap_servers, str, closing).producer({"retry.backoff.ms": 20})
        korvet("fault", "add", "error", "NOT_LEADER_OR_FOLLOWER", "--api", "Produce", "--count", "1")
        producer.produce("orders", "a")

        assert 0 == producer.flush(20)
        (fault,) = json.loads(korvet("fault", "list", "--json").out)
        assert (1, False) == (fault["hits"], fault["active"])


def test_fault_port_needs_one_process() -> None:
    status, message = refused(
        "--listeners",
        "localhost:0",
        "--fault-port",
        "0",
        "--processes",
        "2",
        "--storage",
        "redis://localhost:1",
    )

    assert (2, True) == (status, "--fault-port needs a broker of one process." in message)
