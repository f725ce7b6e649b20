from __future__ import annotations

from pathlib import Path

import pytest

from korvet.config import ConfigError, Listener, load_config


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "broker.properties").write_text("redis.password = s3same\nrack = left\n", encoding="utf-8")
    (tmp_path / "redis-password").write_text("s3same\n", encoding="utf-8")
    return tmp_path


def test_references_are_replaced_in_values_of_every_source(secrets: Path) -> None:
    file = secrets / "korvet.toml"
    file.write_text('listeners = ["${env:INSIDE}", "OUTSIDE://:9093"]\n', encoding="utf-8")
    config = load_config(
        file=file,
        environ={
            "INSIDE": "localhost:9092",
            "KORVET_BROKER_RACK": f"${{file:{secrets}/broker.properties:rack}}-hand side",
        },
        flags={"storage": f"redis://:${{directory:{secrets}:redis-password}}@${{env:INSIDE}}"},
    )

    assert (Listener("PLAINTEXT", "localhost", 9092), Listener("OUTSIDE", "", 9093)) == config.listeners
    assert "left-hand side" == config.broker_rack
    assert "redis://:s3same@localhost:9092" == config.storage
    assert "KORVET_BROKER_RACK" == config.source_of("broker.rack")


def test_references_are_replaced_in_settings_of_one_listener() -> None:
    config = load_config(
        environ={"LIMIT": "1000"},
        flags={"listener.name.plaintext.sasl.server.max.receive.size": "${env:LIMIT}"},
    )

    assert 1000 == config.of_listener(config.listeners[0], "sasl_server_max_receive_size")


def test_reference_of_an_overridden_value_is_not_followed() -> None:
    config = load_config(environ={"KORVET_NODE_ID": "${env:MISSING}"}, flags={"node.id": "3"})

    assert 3 == config.node_id


@pytest.mark.parametrize(
    "reference, error",
    [
        ("${env:MISSING}", "does not exist; accepted: ${file:PATH:KEY}, ${directory:PATH:FILE}, ${env:NAME}"),
        ("${vault:secret/korvet:rack}", "does not exist; accepted: ${file:PATH:KEY}, "),
        ("${file:FOLDER/broker.properties:missing}", "does not exist; accepted: "),
        ("${file:FOLDER/missing.properties:rack}", ": No such file or directory (from command line)"),
        ("${file:FOLDER:rack}", ": Is a directory"),
        ("${file:rack}", "does not exist; accepted: "),
        ("${directory:FOLDER:missing}", ": No such file or directory"),
        ("${directory:FOLDER:../broker.properties}", "does not exist; accepted: "),
        ("${env:A:B}", "does not exist; accepted: "),
    ],
)
def test_reference_that_leads_nowhere_is_a_fault(secrets: Path, reference: str, error: str) -> None:
    given = reference.replace("FOLDER", str(secrets))

    with pytest.raises(ConfigError) as caught:
        load_config(environ={}, flags={"broker.rack": given, "node.id": "-2"})

    faults = sorted(caught.value.errors)
    assert 2 == len(faults)
    assert faults[0].startswith(f"$.broker.rack: {given}")
    assert error in faults[0]
    assert faults[1].startswith("$.node.id: -2 is out of range")


@pytest.mark.parametrize("name", ["num.partitions", "listener.name.plaintext.connections.max.reauth.ms"])
def test_error_about_a_referenced_value_does_not_contain_it(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ={"SECRET": "s3same"}, flags={name: "${env:SECRET}"})

    [error] = caught.value.errors
    assert error.startswith(
        f"$.{name}: the value of ${{env:SECRET}} does not have that form (from command line)"
    )
    assert "s3same" not in error


def test_text_that_only_looks_like_a_reference_stays() -> None:
    assert (
        "$1 ${a} {env:B}"
        == load_config(environ={"B": "b"}, flags={"broker.rack": "$1 ${a} {env:B}"}).broker_rack
    )


def test_value_with_a_reference_can_be_read_again(secrets: Path) -> None:
    file = secrets / "broker.properties"
    config = load_config(flags={"broker.rack": f"${{file:{file}:rack}}", "node.id": "3"})
    file.write_text("rack = right\n", encoding="utf-8")

    assert "left" == config.broker_rack
    assert "right" == config.read_again("broker.rack")
    assert 3 == config.read_again("node.id")
    file.unlink()
    with pytest.raises(ValueError, match="No such file"):
        config.read_again("broker.rack")
