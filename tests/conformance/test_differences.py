"""The declared differences; the command fails on any other."""

from __future__ import annotations

from pathlib import Path

import pytest

import conformance.scenarios  # noqa: F401  declares them
from conformance.__main__ import judge
from conformance.comparison import Difference, Found
from conformance.differences import Reason, declared, text_of, updated, versions_of, write
from conformance.page import PAGE, page
from conformance.peers import MEMORY, OURS, RECORDS
from conformance.rules import RULES, Kind, Rule
from conformance.scenario import SCENARIOS, Outcome, Scenario
from korvet.handlers import APIS
from korvet.protocol.schema import schema_of

KNOWN = Difference("x", "first", "Fetch", (4, 5), ("responses.error_code",), OURS, "NONE", "INVALID_REQUEST")
FOUND = [
    Found("x", "first", "Fetch", version, "responses.error_code", broker, "NONE", "INVALID_REQUEST")
    for version in (4, 5)
    for broker in OURS
]
REASONS = [Reason("asked for by the design", (KNOWN,))]
# Parts of fetched records are not in the schemas (see `answers`).
PARTS_OF_RECORDS = ("offset", "base_offset")


def outcome(found: list[Found], *broken: str) -> Outcome:
    return Outcome(Scenario("x", lambda _talk, _version: None, (0,)), 10, found, broken)


def judged(found: list[Found], reasons: list[Reason], *broken: str) -> int:
    return judge([outcome(found, *broken)], reasons, page(reasons, SCENARIOS.values()))


def test_declared_differences_pass() -> None:
    assert 0 == judged(FOUND, REASONS)


def test_undeclared_difference_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == judged(FOUND, [])
    assert "UNDECLARED x, first: Fetch 4-5 responses.error_code" in capsys.readouterr().out


def test_declared_difference_in_one_more_version_fails() -> None:
    more = Found("x", "first", "Fetch", 6, "responses.error_code", MEMORY, "NONE", "INVALID_REQUEST")

    assert 1 == judged([*FOUND, more], REASONS)


def test_declared_difference_of_fewer_brokers_fails() -> None:
    assert 1 == judged([one for one in FOUND if one.broker != RECORDS], REASONS)


def test_declared_difference_that_no_longer_occurs_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == judged([], REASONS)
    assert "NO LONGER FOUND x, first" in capsys.readouterr().out


def test_difference_without_a_reason_fails() -> None:
    assert 1 == judged(FOUND, [Reason("", (KNOWN,))])


def test_scenario_that_fails_on_kafka_fails() -> None:
    assert 1 == judged(FOUND, REASONS, "version 4: it stopped")


def test_outdated_page_fails() -> None:
    assert 1 == judge([outcome(FOUND)], REASONS, "another page")


def test_new_differences_are_added_without_a_reason_and_obsolete_ones_removed() -> None:
    new = Difference("x", "second", "Fetch", (4,), ("a",), (MEMORY,), "1", "2")
    elsewhere = Difference("y", "first", "Fetch", (4,), ("a",), OURS, "1", "2")
    reasons = [Reason("asked for", (KNOWN, elsewhere))]

    assert [Reason("asked for", (elsewhere,)), Reason("", (new,))] == updated([new], reasons, ["x"])


def test_differences_without_a_reason_are_kept_when_their_scenario_is_not_run() -> None:
    waiting = [Reason("", (KNOWN,))]

    assert waiting == updated([], waiting, ["another"])


def test_declared_differences_survive_a_round_trip(tmp_path: Path) -> None:
    odd = Difference("x", 'a "b" \\ \t', "Fetch", (0, 2, 3), ("a|b", "c"), (MEMORY,), "ä\x7f", "''")
    reasons = [Reason("why\nnot", (odd, KNOWN))]

    write(reasons, tmp_path / "file.toml")

    assert reasons == declared(tmp_path / "file.toml")


@pytest.mark.parametrize("text, versions", [("3", (3,)), ("0-2, 5", (0, 1, 2, 5)), ("1, 3", (1, 3))])
def test_versions_are_written_as_ranges(text: str, versions: tuple[int, ...]) -> None:
    assert versions == versions_of(text)
    assert text == text_of(versions)


def test_page_is_up_to_date() -> None:
    assert page(declared(), SCENARIOS.values()) == PAGE.read_text(encoding="utf-8"), (
        "run: .venv/bin/python -m conformance --page"
    )


def test_every_declared_difference_has_a_reason_and_a_scenario() -> None:
    rows = [row for reason in declared() for row in reason.differences]

    assert all(reason.why for reason in declared())
    assert set() == {row.scenario for row in rows} - set(SCENARIOS)
    assert len(rows) == len(set(rows))


def test_every_version_of_every_api_is_requested() -> None:
    asked = {
        (each.request, version) for each in SCENARIOS.values() if each.request for version in each.versions
    }
    served = {
        (api.request, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    }

    assert set() == served - asked


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.api} {rule.field} {rule.kind.name}")
def test_rules_name_existing_fields(rule: Rule) -> None:
    (api,) = (api for api in APIS.values() if api.name == rule.api)
    struct: type[object] | None = api.response
    names = rule.field.split(".")
    while names and struct is not None:
        name = names.pop(0)
        (found,) = (each for each in schema_of(struct).fields if each.name == name)
        if found.kafka_type == "records":
            assert names == [] or names[0] in PARTS_OF_RECORDS
            return
        struct = found.struct

    assert [] == names
    assert rule.kind is not Kind.ORDER or found.is_array
