"""The command line of the conformance run, where it needs no broker."""

from __future__ import annotations

import pytest

from conformance.__main__ import main


def test_unknown_word_is_refused_with_similar_scenario_names(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["fetch:", "fecth"])
    captured = capsys.readouterr()

    assert 2 == status
    assert captured.err.startswith("no scenario has 'fecth' in its name; near names: fetch: ")
    assert "" == captured.out
