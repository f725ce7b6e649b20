"""The socket of `korvet lake run --sql-socket` without Spark. test_query_engines.py has queries."""

# ruff: noqa: F811  the fixtures of other modules

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import NoReturn

import click
import pytest

from korvet.cli.lake.sql_socket import Request, answering, ask
from korvet.lake.errors import LakeError
from tests.cli.conftest import Korvet, broker, korvet  # noqa: F401  fixtures
from tests.pipeline.lake_runs import written

REQUEST = Request.of("select 1", "lake", None, (), None, {}, 30.0)


def no_session() -> NoReturn:
    raise LakeError("no session")


def test_socket_is_of_its_user_alone_and_reports_errors_with_their_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sql"
    with answering(str(path), no_session):
        mode = path.stat().st_mode & 0o777
        with pytest.raises(SystemExit) as ended:
            ask(f"unix:{path}", REQUEST)
        with (
            pytest.raises(click.UsageError, match="Another program listens there"),
            answering(str(path), no_session),
        ):
            pass
        with pytest.raises(SystemExit):
            ask(f"unix:{path}", REQUEST)

    assert 0o600 == mode
    assert 1 == ended.value.code
    assert "korvet: no session\n" * 2 == capfd.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("sent", [b"\n", b"no JSON\n", b"[]\n", b'{"sql": "select 1", "later": 1}\n'])
def test_request_of_another_version_is_one_line(tmp_path: Path, sent: bytes) -> None:
    path = tmp_path / "sql"
    with answering(str(path), no_session), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(sent)
        with client.makefile("rb") as lines:
            end = json.loads(lines.read())

    assert {
        "status": 1,
        "error": "korvet: The run does not understand the query: it is of another version.",
    } == end


def test_socket_of_a_killed_run_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sql"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))

    with answering(str(path), no_session), pytest.raises(SystemExit):
        ask(f"unix:{path}", REQUEST)


@pytest.mark.parametrize("sent", [b"", b'{"columns": ["n"]}\n[1]\n', b'{"columns": ["n"]}\n[1'])
def test_answer_that_ends_early_is_an_error(tmp_path: Path, sent: bytes) -> None:
    path = tmp_path / "sql"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def send() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(sent)

        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(click.ClickException, match=re.escape(f"The run at {path} ended before")):
            ask(f"unix:{path}", REQUEST)
        thread.join()


def test_paths_of_a_request_do_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    request = Request.of("select 1", "lake", "s3://bucket/typed", (), None, {}, 30.0)

    assert (str(tmp_path / "lake"), "s3://bucket/typed") == (request.lake, request.typed)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("lake.toml", "Address already in use"),
        ("no/sql", "No such file or directory"),
        ("x" * 200, "path too long"),
    ],
)
def test_run_refuses_a_path_that_cannot_be_a_socket(
    korvet: Korvet, tmp_path: Path, name: str, reason: str
) -> None:
    file = written(tmp_path, "")

    outcome = korvet("lake", "run", "--config", str(file), "--sql-socket", str(tmp_path / name))

    assert (2, 1) == (outcome.status, outcome.err.count("\n"))
    assert reason in outcome.err
    assert file.exists()
