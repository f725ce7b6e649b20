"""Profiles, and completion of names by a shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from korvet.cli import program
from tests.cli.conftest import Korvet, Outcome
from tests.processes import KorvetProcess

AWAY = "127.0.0.1:1"  # nothing listens there


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write the file with profiles, and name no broker in the environment."""
    path = tmp_path / "profiles.toml"
    monkeypatch.setenv("KORVET_PROFILES", str(path))

    def write(text: str) -> Path:
        monkeypatch.delenv("KORVET_BOOTSTRAP_SERVERS", raising=False)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def here(broker: KorvetProcess, korvet: Korvet, write: Callable[[str], Path]) -> Path:
    """Profiles of the broker, the default, and of one that is away."""
    return write(
        f'profile = "here"\n[here]\nbootstrap.servers = "{broker.bootstrap_servers}"\n'
        f'[away]\nbootstrap.servers = "{AWAY}"\ntimeout = 0.2\n'
    )


def test_default_profile_names_the_broker(korvet: Korvet, here: Path) -> None:
    assert 0 == korvet("cluster", "describe").status


def test_option_and_environment_select_a_profile(
    korvet: Korvet, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Outcome(1, "", f"korvet: {AWAY}: Connection refused. (NETWORK_EXCEPTION)\n")

    assert refused == korvet("cluster", "describe", "--profile", "away")
    monkeypatch.setenv("KORVET_PROFILE", "away")
    assert refused == korvet("cluster", "describe")
    assert 0 == korvet("cluster", "describe", "--profile", "here").status


def test_options_and_property_files_override_a_profile(
    korvet: Korvet, broker: KorvetProcess, here: Path, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text(f"bootstrap.servers={broker.bootstrap_servers}\n")

    servers = broker.bootstrap_servers
    for named in (["-b", servers], ["--bootstrap-server", servers], ["--command-config", str(properties)]):
        options = [*named, "--timeout", "60"]
        assert 0 == korvet("cluster", "describe", "--profile", "away", *options).status
        assert 0 == korvet("cluster", "describe", *options, "--profile", "away").status


def test_profile_has_properties_of_its_own_and_of_a_file_beside_it(
    korvet: Korvet, write: Callable[[str], Path], broker: KorvetProcess
) -> None:
    path = write(
        f'[tls]\nbootstrap.servers = "{broker.bootstrap_servers}"\ncommand.config = "tls.properties"\n'
    )
    (path.parent / "tls.properties").write_text("security.protocol=SSLX\n")

    refused = korvet("cluster", "describe", "--profile", "tls")
    assert (2, "") == (refused.status, refused.out)
    assert "security.protocol is 'SSLX'; accepted are PLAINTEXT, SSL" in refused.err


@pytest.mark.parametrize(
    "text, status, message",
    [
        ("[dev]\n", 2, "has no profile 'nope'; it has dev."),
        ("", 2, "has no profile 'nope'; it has no profiles."),
        ("[dev\n", 1, "not valid TOML"),
        ('dev = "localhost:9092"\n', 1, "dev is no profile; accepted: profile and tables [NAME]."),
        ("profile = 5\n", 1, "profile is the name of a profile in quotes."),
        ("[nope]\ntimeout = 0\n", 2, "Invalid value for '--timeout'"),
    ],
)
def test_unusable_profile_is_reported_in_one_line(
    korvet: Korvet, write: Callable[[str], Path], text: str, status: int, message: str
) -> None:
    write(text)
    done = korvet("topics", "list", "--profile", "nope")

    assert (status, 1) == (done.status, done.err.count("\n"))
    assert message in done.err


def test_profiles_are_listed_with_the_selected_one(korvet: Korvet, here: Path) -> None:
    rows = json.loads(korvet("profiles", "--json").out)

    assert [("away", False), ("here", True)] == [(row["profile"], row["selected"]) for row in rows]
    assert ["away", "here"] == [line.split()[0] for line in korvet("profiles").out.splitlines()[1:]]


# --- Completion ---------------------------------------------------------------------------------------------


def completed(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], *words: str
) -> list[str]:
    """Return what bash would offer for the last word."""
    monkeypatch.setenv("COMP_WORDS", " ".join(["korvet", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv("_KORVET_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as end:
        program.main([], prog_name="korvet")
    captured = capfdbinary.readouterr()
    assert (0, b"") == (end.value.code, captured.err)
    return [line.removeprefix("plain,") for line in captured.out.decode().split()]


def test_names_of_topics_groups_and_profiles_are_completed(
    korvet: Korvet, here: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("completed-1", "completed-2"):
        korvet("topics", "create", name)
    korvet("consume", "completed-1", "--group", "completing")

    def offered(*words: str) -> list[str]:
        return completed(monkeypatch, capfdbinary, *words)

    assert ["completed-1", "completed-2"] == offered("topics", "describe", "completed-")
    assert ["completed-2"] == offered("consume", "completed-1", "completed-2")
    assert ["completing"] == offered("groups", "describe", "completi")
    assert ["away", "here"] == offered("topics", "list", "--profile", "")
    assert ["records"] == offered("rec")
    assert [] == offered("topics", "describe", "--profile", "away", "completed-")
    assert [] == offered("topics", "describe", "-b", "nonsense", "completed-")
