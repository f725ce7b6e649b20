"""`korvet config` prints the settings of a broker that does not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from korvet.config import settings
from tests.cli.conftest import Korvet

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_values_are_printed_with_their_sources(
    korvet: Korvet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "korvet.toml"
    file.write_text("num.partitions = 3\n")
    monkeypatch.setenv("KORVET_BROKER_RACK", "left")
    override = "listener.name.plaintext.connections.max.reauth.ms=1000"
    printed = korvet(
        "config", "print", "--set-only", "--json", "--config", str(file),
        "--storage", "redis://:c4n4ry@localhost", "--set", override,
    )  # fmt: skip

    assert (0, "") == (printed.status, printed.err)
    assert [
        {"name": "storage", "value": "redis://@localhost", "source": "command line"},
        {"name": "broker.rack", "value": "left", "source": "KORVET_BROKER_RACK"},
        {"name": "num.partitions", "value": 3, "source": str(file)},
        {
            "name": "listener.name.plaintext.connections.max.reauth.ms",
            "value": 1000,
            "source": "command line",
        },
    ] == json.loads(printed.out)


def test_table_has_all_settings(korvet: Korvet) -> None:
    head, *rows = korvet("config", "print").out.splitlines()

    assert ["NAME", "VALUE", "SOURCE"] == head.split()
    assert ["listeners", "PLAINTEXT://localhost:9092", "default"] in [row.split() for row in rows]
    assert len(settings()) == len(rows)


def test_invalid_settings_are_reported_as_by_serve(korvet: Korvet) -> None:
    printed = korvet("config", "print", "--set", "num.partitions=none")

    assert 2 == printed.status
    assert "$.num.partitions: 'none' is not a whole number" in printed.err


def test_page_of_the_reference_is_the_printed_one(korvet: Korvet) -> None:
    printed = korvet("config", "reference").out

    assert PAGE.read_text(encoding="utf-8") == printed, (
        "write it: korvet config reference > docs/configuration.md"
    )


def test_config_print_shows_no_password(korvet: Korvet) -> None:
    with_passwords = {
        "sasl.oauthbearer.jwks.endpoint.url": "https://me:pw123@issuer/keys?token=pw123",
        "lake.url": "s3://key:pw123@bucket/prefix",
        "storage": "redis://me:pw123@host:6379/0",
    }
    flags = [word for name, value in with_passwords.items() for word in ("--set", f"{name}={value}")]
    done = [korvet("config", "print", *flags), korvet("config", "print", "--json", *flags)]

    assert [0, 0] == [each.status for each in done]
    for each in done:
        assert "https://me@issuer/keys" in each.out
        assert "s3://key@bucket/prefix" in each.out
        assert "pw123" not in each.out
