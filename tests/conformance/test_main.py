"""The command line of the conformance run, where it needs no broker."""

from __future__ import annotations

import pytest

from conformance.__main__ import main


def test_a_word_that_matches_no_scenario_ends_with_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["fetch:", "fecth"])
    captured = capsys.readouterr()

    assert status == 2
    assert captured.err.startswith("no scenario has 'fecth' in its name; near names: fetch: ")
    assert captured.out == ""
