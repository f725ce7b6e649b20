"""The files in `deploy/`: systemd's own tools check the unit, and the broker the settings of the containers."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from korvet.cli import main
from korvet.config import Listener, load_config
from tests.processes import KorvetProcess

DEPLOY = Path(__file__).parents[1] / "deploy"
INSTRUCTION = re.compile(r"^([A-Z]+) ((?:.*\\\n)*.*)$", re.MULTILINE)
HIGHEST_EXPOSURE = 20  # of 100


def test_build_context_has_only_what_the_package_is_built_from() -> None:
    """Else data, credentials and environments of the checkout get into the build."""
    excluded, *patterns = [
        line
        for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    included = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    metadata = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())

    assert "*" == excluded
    packages = metadata["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = {"LICENSE", "README.md", "hatch_build.py", "pyproject.toml"}
    assert files | set(packages) == included


def instructions() -> list[tuple[str, str]]:
    """Return the names and arguments of the recipe's instructions, those of the last stage only."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    found = [(match[1], match[2].replace("\\\n", " ")) for match in INSTRUCTION.finditer(text)]
    last = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def environment() -> dict[str, str]:
    """Return the environment that the image sets."""
    (variables,) = (arguments for name, arguments in instructions() if name == "ENV")
    return dict(pair.split("=", 1) for pair in variables.split())


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that exists."""
    text = (DEPLOY / "korvet.service").read_text()
    path = tmp_path / "korvet.service"
    path.write_text(text.replace("/opt/korvet/bin/korvet", sys.executable))
    return path


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False
    )


def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = analyzed("verify", str(unit))

    assert (0, "") == (done.returncode, done.stderr)


def test_unit_has_little_access(unit: Path) -> None:
    done = analyzed("security", "--offline=true", f"--threshold={HIGHEST_EXPOSURE}", str(unit))

    assert 0 == done.returncode, done.stdout
    assert "1.3 OK" in done.stdout.splitlines()[-1]  # as docs/deployment.md has it


def test_broker_notifies_systemd_once_it_serves(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        path = tmp_path / "notify"
        manager.bind(str(path))
        with KorvetProcess(environment={"NOTIFY_SOCKET": str(path)}):
            assert b"READY=1" == manager.recv(100)


def test_image_serves_all_addresses_and_keeps_records_in_its_volume() -> None:
    config = load_config(environ=environment())

    assert (Listener("PLAINTEXT", "", 9092),) == config.listeners
    assert (Listener("PLAINTEXT", "localhost", 9092),) == config.advertised_listeners
    names = dict(instructions())
    assert config.storage.startswith(f"embedded:{names['VOLUME']}/")
    assert "10001" == names["USER"]
    assert ["korvet"] == json.loads(names["ENTRYPOINT"])


def test_health_check_succeeds_only_while_the_broker_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = (arguments for name, arguments in instructions() if name == "HEALTHCHECK")
    program, *arguments = json.loads(check.partition(" CMD ")[2])

    def status() -> object:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        return end.value.code

    with KorvetProcess() as broker:
        monkeypatch.setenv("KORVET_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
        assert ("korvet", 0) == (program, status())
    assert 1 == status()


@pytest.mark.parametrize("port", [9092, 19092])
def test_compose_file_has_valid_settings_and_no_privileges(port: int) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert 2 == text.count("${KORVET_PORT:-9092}")
    services: dict[str, Any] = yaml.safe_load(text.replace("${KORVET_PORT:-9092}", str(port)))["services"]
    service = services["korvet"]
    config = load_config(environ=environment() | service["environment"])

    assert "redis://valkey:6379/0" == config.storage
    assert [f"localhost:{port}", "korvet:19092"] == [
        f"{each.host}:{each.port}" for each in config.advertised_listeners
    ]
    assert [f"127.0.0.1:{port}:9092"] == service["ports"]
    assert (True, ["ALL"]) == (service["read_only"], service["cap_drop"])
    assert service["build"]["dockerfile"] == "deploy/Containerfile"
    assert "noeviction" in services["valkey"]["command"]
