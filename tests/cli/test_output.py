"""Tables and progress."""

from __future__ import annotations

import io
import sys
import time

import pytest

from korvet.cli.output import Progress, print_table


def test_table_aligns_text_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        [{"topic": "orders", "partitions": 3}, {"topic": "x", "partitions": 12}], ["topic", "partitions"]
    )

    expected = "TOPIC   PARTITIONS\norders           3\nx               12\n"
    assert expected == capsys.readouterr().out


def test_table_without_rows_contains_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([], ["topic", "partitions"])

    assert "TOPIC  PARTITIONS\n" == capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_progress_updates_one_line_and_clears_it(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    with Progress("produced") as progress:
        progress.show(10)  # too early for a line
        clock.now = 2.0
        progress.show(3000)
        progress.show(3001)  # too soon after the last
        clock.now = 4.0
        progress.show(8000, 9000)

    assert [
        "",
        "\x1b[Kproduced 3,000 records, 1,500/s",
        "\x1b[Kproduced 8,000 of 9,000 records, 2,000/s",
        "\x1b[K",
    ] == terminal.getvalue().split("\r")


def test_progress_is_silent_without_a_terminal(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    redirected = io.StringIO()
    monkeypatch.setattr(sys, "stderr", redirected)

    with Progress("produced") as progress:
        clock.now = 2.0
        progress.show(3000)

    assert "" == redirected.getvalue()
