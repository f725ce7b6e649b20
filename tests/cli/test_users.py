"""`korvet users`, against a broker in a separate process, and against a storage without a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Korvet, Outcome
from tests.processes import KorvetProcess


def users(outcome: Outcome) -> list[tuple[str, str, int]]:
    assert 0 == outcome.status, outcome
    return [(each["user"], each["mechanism"], each["iterations"]) for each in json.loads(outcome.out)]


def test_user_is_added_listed_and_removed(korvet: Korvet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KORVET_PASSWORD", "alice's secret")
    assert Outcome(0, "") == korvet("users", "add", "alice", "--iterations", "8192")
    assert Outcome(0, "") == korvet("users", "add", "alice", "--mechanism", "SCRAM-SHA-256")

    expected = [("alice", "SCRAM-SHA-256", 4096), ("alice", "SCRAM-SHA-512", 8192)]
    assert expected == users(korvet("users", "list", "--json"))
    assert ["alice", "SCRAM-SHA-512", "8192"] in [
        row.split() for row in korvet("users", "list").out.splitlines()
    ]
    assert Outcome(0, "") == korvet("users", "remove", "alice")
    assert [] == users(korvet("users", "list", "--json"))
    assert Outcome(1, "", "korvet: there is no user alice\n") == korvet("users", "remove", "alice")


def test_password_is_the_first_line_of_standard_input(piped: Korvet, korvet: Korvet) -> None:
    assert Outcome(0, "") == piped("users", "add", "bob", stdin="bob's secret\n")
    assert Outcome(0, "") == korvet("users", "remove", "bob")


@pytest.mark.parametrize("stdin", ["", "\n"])
def test_empty_password_is_refused(korvet: Korvet, stdin: str) -> None:
    outcome = korvet("users", "add", "bob", stdin=stdin)

    assert 2 == outcome.status
    assert "There is no password, neither in KORVET_PASSWORD nor on standard input." in outcome.err


def test_password_is_no_argument(korvet: Korvet) -> None:
    assert 2 == korvet("users", "add", "bob", "--password", "x").status
    assert 2 == korvet("users", "add", "bob", "x").status


def test_memory_is_refused_as_storage(korvet: Korvet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KORVET_PASSWORD", "x")

    assert "memory:// is in the memory of one broker" in (
        korvet("users", "add", "bob", "--storage", "memory://").err
    )


@pytest.mark.servers
def test_first_user_is_added_without_a_broker(
    tmp_path: Path, korvet: Korvet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KORVET_PASSWORD", "secret")
    storage = f"embedded:{tmp_path / 'data'}"
    assert 0 == korvet("users", "add", "admin", "--storage", storage).status

    expected = [("admin", "SCRAM-SHA-256", 4096), ("admin", "SCRAM-SHA-512", 4096)]
    assert expected == users(korvet("users", "list", "--storage", storage, "--json"))
    monkeypatch.delenv("KORVET_PASSWORD")
    with KorvetProcess(storage) as process:
        listed = korvet("users", "list", "-b", process.bootstrap_servers, "--json")
        assert expected == users(listed)
    assert 0 == korvet("users", "remove", "admin", "--storage", storage).status
    assert [] == users(korvet("users", "list", "--storage", storage, "--json"))
