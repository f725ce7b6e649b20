"""Fixtures: a broker, and functions that run commands against it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest
from attrs import frozen

from korvet.cli import main
from tests.processes import KorvetProcess


@frozen
class Outcome:
    """The exit status and output of a command."""

    status: int
    out: str
    err: str = ""


Korvet = Callable[..., Outcome]


@pytest.fixture(scope="session")
def broker() -> Iterator[KorvetProcess]:
    with KorvetProcess(settings={"group.initial.rebalance.delay.ms": "0"}) as process:
        yield process


@pytest.fixture
def korvet(
    broker: KorvetProcess, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Korvet:
    """Runs a command in this process, as the program does, against the broker. Its input is a file with `stdin`."""
    monkeypatch.setenv("KORVET_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def run(*arguments: str, stdin: str = "") -> Outcome:
        with tempfile.TemporaryFile("w+") as file, monkeypatch.context() as context:
            file.write(stdin)
            file.seek(0)
            context.setattr(sys, "stdin", file)
            with pytest.raises(SystemExit) as end:
                main(arguments)
        captured = capfdbinary.readouterr()
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, captured.out.decode(), captured.err.decode())

    return run


@pytest.fixture
def piped(broker: KorvetProcess) -> Korvet:
    """Runs a command as a separate process with `stdin` in a pipe as its input."""

    def run(*arguments: str, stdin: str = "") -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "korvet", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=os.environ | {"KORVET_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run
