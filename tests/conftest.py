"""Hooks for all tests: a skipped test fails the run, after all others have run.

A test that finds a program missing has found something out about the machine, and a green run that says
nothing about it would be read as proof. So what was skipped is named at the end, and the run ends non-zero.

Some tests report figures although they pass: how many requests a kill left unanswered, how long a wake-up took. They
use the fixture `report`, and its lines are also printed at the end of the run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import hypothesis
import psutil
import pytest

from tests.certificates import Authority

# The time that an example takes depends on the other work of the machine.
hypothesis.settings.register_profile("korvet", deadline=None)
hypothesis.settings.load_profile("korvet")


class Skips:
    """Collects skipped tests, and modules that were skipped during their import."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._remember(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._remember(report)

    def _remember(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # An expected failure is reported as skipped, too; its reason is in the code beside it.
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._reasons[report.nodeid] = reason

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._reasons and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._reasons:
            return
        terminalreporter.section("skipped, so this run fails", red=True)
        for nodeid, reason in sorted(self._reasons.items()):
            terminalreporter.line(f"{nodeid}: {reason.removeprefix('Skipped: ')}")


class ReportedLines:
    """Collect the lines that tests output with `report`. Properties of reports also work with parallel processes."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            test = report.nodeid.rpartition("::")[2]
            self._lines += [f"{test}: {text}" for name, text in report.user_properties if name == "reported"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("lines that tests reported")
        for line in self._lines:
            terminalreporter.line(line)


def pytest_sessionfinish() -> None:
    """Save the coverage of this process now: pytest-xdist kills a worker that takes ten seconds to end."""
    coverage = sys.modules.get("coverage")  # imported only by `make coverage`
    if coverage is not None and (measured := coverage.Coverage.current()) is not None:
        measured.save()


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that outputs a line at the end of the run, whether the test passes or not."""
    return lambda text: record_property("reported", text)


def pytest_configure(config: pytest.Config) -> None:
    # A job in a shell's background has Ctrl-C ignored, and hands that on to the programs it starts, where tests
    # could not end them as a person does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup the brokers would ignore it too. They do not inherit a handler.
        signal.signal(signal.SIGHUP, lambda *_: None)
    config.pluginmanager.register(Skips(), "korvet-skips")
    config.pluginmanager.register(ReportedLines(), "korvet-sayings")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Kill the programs that failed tests have left behind."""
    if not getattr(config.option, "numprocesses", None):  # the children of the main process are the workers
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority whose certificates all tests share."""
    return Authority(tmp_path_factory.mktemp("certificates"))
