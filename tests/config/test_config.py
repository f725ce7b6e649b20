from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.config import Config, ConfigError, Listener, load_config, settings


def faults(**sources: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(**sources)
    return list(caught.value.errors)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "korvet.toml"


# --- Where values come from --------------------------------------------------------------------------------


def test_config_without_sources_has_the_defaults() -> None:
    config = load_config()

    assert Config() == config
    assert "memory://" == config.storage
    assert (Listener("PLAINTEXT", "localhost", 9092),) == config.listeners
    assert "default" == config.source_of("storage")


def test_flags_override_the_environment_which_overrides_the_file(file: Path) -> None:
    file.write_text('num.partitions = 2\nmax.connections = 2\nnode.id = 2\n"storage" = "redis://file"\n')
    environ = {"KORVET_NUM_PARTITIONS": "3", "KORVET_MAX_CONNECTIONS": "3", "PATH": "/bin"}

    config = load_config(file=file, environ=environ, flags={"num.partitions": "4"})

    assert (4, 3, 2, "redis://file", 1) == (
        config.num_partitions,
        config.max_connections,
        config.node_id,
        config.storage,
        config.default_replication_factor,
    )
    assert ["command line", "KORVET_MAX_CONNECTIONS", str(file), "default"] == [
        config.source_of(name)
        for name in ("num.partitions", "max.connections", "node.id", "default.replication.factor")
    ]


def test_file_may_have_tables_quoted_keys_and_typed_values(file: Path) -> None:
    file.write_text(
        """
        listeners = ["localhost:1", "OUTSIDE://:2"]
        "auto.create.topics.enable" = false
        [storage]
        url = "redis://host"
        layout = "batch"
        [log.retention]
        ms = -1
        """
    )

    config = load_config(file=file)

    assert ("redis://host", "batch", -1, False) == (
        config.storage,
        config.storage_layout,
        config.retention_ms,
        config.auto_create_topics_enable,
    )
    assert (Listener("PLAINTEXT", "localhost", 1), Listener("OUTSIDE", "", 2)) == config.listeners


@pytest.mark.parametrize("name", ["broker.id", "node.id"])
def test_older_names_of_kafka_are_accepted(name: str) -> None:
    config = load_config(flags={name: "7"})

    assert 7 == config.node_id
    assert "command line" == config.source_of("node.id")


def test_variables_set_by_kubernetes_are_ignored() -> None:
    environ = {
        "KORVET_SERVICE_HOST": "10.0.0.1",
        "KORVET_SERVICE_PORT_KAFKA": "9092",
        "KORVET_PORT": "tcp://10.0.0.1:9092",
        "KORVET_PORT_9092_TCP_ADDR": "10.0.0.1",
        "KORVET_CONFIG": "korvet.toml",
    }

    assert Config() == load_config(environ=environ)


# A listener with TLS.
TLS = {"listeners": "SSL://:1", "ssl.keystore.location": "keystore.pem"}


# --- Faults ------------------------------------------------------------------------------------------------


def test_all_faults_are_reported_with_path_source_and_accepted_values(file: Path) -> None:
    file.write_text('compression.type = "brotli"\nnum.partitons = 3\n')

    told = faults(
        file=file, environ={"KORVET_NUM_PARTITIONS": "0"}, flags={"listeners": "no where", "max.x": "1"}
    )

    assert [
        f"$.num.partitons: unknown setting (from {file}); did you mean num.partitions?",
        "$.max.x: unknown setting (from command line); `korvet serve --settings` prints them all",
        (
            "$.listeners: 'no where' is not an address (from command line); accepted: HOST:PORT, HOST, :PORT,"
            " [IPV6]:PORT or NAME://HOST:PORT, separated by commas"
        ),
        "$.num.partitions: 0 is out of range (from KORVET_NUM_PARTITIONS); accepted: a whole number, at least 1",
        (
            f"$.compression.type: 'brotli' is not one of them (from {file}); accepted: producer, uncompressed, gzip,"
            " snappy, lz4, zstd"
        ),
    ] == told


@pytest.mark.parametrize(
    "name, value",
    [
        ("num.partitions", "many"),
        ("num.partitions", "1.5"),
        ("num.partitions", True),
        ("num.partitions", str(2**31)),
        ("log.retention.bytes", str(2**63)),
        ("auto.create.topics.enable", "yes"),
        ("auto.create.topics.enable", 1),
        ("storage.layout", "Record"),
        ("storage", ""),
        ("storage", 5),
        ("broker.rack", "a\nb"),
        ("offset.sequence.bits", "17"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("sasl.enabled.mechanisms", "scram-sha-256"),
        ("sasl.oauthbearer.jwks.endpoint.url", "ftp://host/keys"),
        ("listener.security.protocol.map", "INSIDE"),
        ("listener.security.protocol.map", "INSIDE:TLS"),
        ("listener.security.protocol.map", ":SSL"),
        ("ssl.client.auth", "maybe"),
        ("ssl.enabled.protocols", "TLSv1.1"),
        ("ssl.cipher.suites", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("ssl.keystore.type", "JKS"),
        ("ssl.keystore.type", "BCFKS"),
        ("listeners", 9092),
        ("listeners", ""),
    ],
)
def test_values_of_a_wrong_type_are_refused(name: str, value: object) -> None:
    (fault,) = faults(flags={name: value})

    assert fault.startswith(f"$.{name}: ")
    assert "; accepted: " in fault


@pytest.mark.parametrize(
    "text",
    [
        "host:",
        "host:x",
        "host:65536",
        "a:1:2",
        "::1:9092",
        "[x]:1",
        "a b:1",
        "-",
        "9092",
        "INSIDE://",
    ],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    (fault,) = faults(flags={"listeners": text})

    assert fault.startswith("$.listeners: ")


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({"advertised.listeners": "X://host:1"}, "there is no listener X; accepted: PLAINTEXT"),
        ({"advertised.listeners": "0.0.0.0:1"}, "clients cannot connect to PLAINTEXT://0.0.0.0:1"),
        ({"listeners": "A://:1,A://:2"}, "two listeners have the same name"),
        (
            {"listeners": "A://:1", "listener.security.protocol.map": "A:SSL"},
            "$.ssl.keystore.location: it is not set; A://:1 requires it, or ssl.keystore.certificate.chain and",
        ),
        (
            {"listeners": "SASL_SSL://:1", "ssl.keystore.key": "key"},
            "$.ssl.keystore.location: it is not set; SASL_SSL://:1 requires it",
        ),
        (
            TLS | {"ssl.keystore.key": "key"},
            "$.ssl.keystore.location: ssl.keystore.certificate.chain or ssl.keystore.key is set as well",
        ),
        (
            TLS | {"ssl.truststore.location": "a", "ssl.truststore.certificates": "b"},
            "$.ssl.truststore.location: ssl.truststore.certificates is set as well",
        ),
        (
            TLS | {"listener.name.ssl.ssl.client.auth": "required"},
            "$.listener.name.ssl.ssl.client.auth: it requires ssl.truststore.location or ssl.truststore.cert",
        ),
        (TLS | {"ssl.enabled.protocols": ""}, "$.ssl.enabled.protocols: the list is empty"),
        (
            TLS | {"ssl.enabled.protocols": "TLSv1.2", "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"},
            "$.ssl.cipher.suites: they belong to no version of ssl.enabled.protocols",
        ),
        (
            TLS | {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"},
            "$.ssl.cipher.suites: TLS 1.3 requires all of TLS_AES_256_GCM_SHA384,",
        ),
        (
            {"listeners": "A://:1,B://:2", "listener.security.protocol.map": "A:PLAINTEXT"},
            "$.listener.security.protocol.map: it has no B; accepted: each listener's name",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": ""},
            "$.sasl.enabled.mechanisms: the list is empty",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "OAUTHBEARER"},
            "$.sasl.oauthbearer.jwks.endpoint.url: it is not set",
        ),
    ],
)
def test_contradicting_settings_are_refused(flags: dict[str, str], expected: str) -> None:
    assert expected in "\n".join(faults(flags=flags))


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({"listeners": ":1,INSIDE://:2"}, ["PLAINTEXT", "PLAINTEXT"]),
        ({"listeners": ":1,SASL_PLAINTEXT://:2"}, ["PLAINTEXT", "SASL_PLAINTEXT"]),
        (
            {
                "listeners": ":1,IN://:2",
                "listener.security.protocol.map": "IN:sasl_plaintext, plaintext:PLAINTEXT",
            },
            ["PLAINTEXT", "SASL_PLAINTEXT"],
        ),
        (
            {"listeners": ":1", "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT"},
            ["SASL_PLAINTEXT"],
        ),
    ],
)
def test_protocol_of_a_listener_is_that_of_the_map_or_of_its_name(
    flags: dict[str, str], expected: list[str]
) -> None:
    config = load_config(flags=flags)

    assert expected == [config.protocol(listener) for listener in config.listeners]
    assert expected == [
        "SASL_PLAINTEXT" if config.has_sasl(listener) else "PLAINTEXT" for listener in config.listeners
    ]


@pytest.mark.parametrize("source", ["flags", "environ", "file"])
def test_setting_of_one_listener_overrides_the_general_one(source: str, tmp_path: Path) -> None:
    flags = {"listeners": "SASL_PLAINTEXT://:1,OTHER://:2", "sasl.enabled.mechanisms": "PLAIN"}
    flags |= {"listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,OTHER:SASL_PLAINTEXT"}
    file, environ = None, {}
    if source == "flags":
        flags |= {"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    elif source == "environ":
        environ = {"KORVET_LISTENER_NAME_SASL_PLAINTEXT_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-256"}
    else:
        file = tmp_path / "korvet.toml"
        file.write_text('[listener.name.sasl_plaintext.sasl]\nenabled.mechanisms = ["SCRAM-SHA-256"]\n')
    config = load_config(file=file, environ=environ, flags=flags)

    assert [("SCRAM-SHA-256",), ("PLAIN",)] == [config.mechanisms(listener) for listener in config.listeners]


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("listener.name.x.sasl.enabled.mechanisms", "PLAIN", "$.listener.name.x: there is no listener X"),
        ("listener.name.plaintext.sasl.enabled.mechanisms", "plain", "'plain' is not one of"),
        ("listener.name.plaintext.num.partitions", "1", "unknown setting"),
        ("listener.name.sasl.enabled.mechanisms", "PLAIN", "unknown setting"),
    ],
)
def test_invalid_setting_of_one_listener_is_refused(name: str, value: str, expected: str) -> None:
    (fault,) = faults(flags={name: value})

    assert expected in fault


@pytest.mark.parametrize("text", ["= 1", 'storage = "memory://"\n[storage]\nlayout = "batch"'])
def test_unreadable_file_is_reported_as_a_fault(file: Path, text: str) -> None:
    file.write_text(text)

    assert any(fault.startswith(f"{file}: ") for fault in faults(file=file))


@pytest.mark.parametrize(
    "text,expected",
    [
        ("localhost", Listener("PLAINTEXT", "localhost", 9092)),
        ("[::1]", Listener("PLAINTEXT", "::1", 9092)),
        ("INSIDE://broker.example", Listener("INSIDE", "broker.example", 9092)),
    ],
)
def test_listener_port_defaults_to_9092(text: str, expected: Listener) -> None:
    assert (expected,) == load_config(flags={"listeners": text}).listeners


def test_missing_file_is_reported_as_a_fault(file: Path) -> None:
    assert [f"{file}: No such file or directory"] == (faults(file=file))


def test_directly_constructed_config_is_validated() -> None:
    with pytest.raises(ConfigError, match=r"\$\.num\.partitions: 0 is out of range"):
        Config(num_partitions=0)


# --- What values mean --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("localhost:9092", [("PLAINTEXT", "localhost", 9092)]),
        (":0", [("PLAINTEXT", "", 0)]),
        ("[::1]:1", [("PLAINTEXT", "::1", 1)]),
        ("plaintext://a.b-c:1", [("PLAINTEXT", "a.b-c", 1)]),
        ("INSIDE://10.0.0.1:1, OUTSIDE://:2", [("INSIDE", "10.0.0.1", 1), ("OUTSIDE", "", 2)]),
        ("a:1,b:2", [("PLAINTEXT", "a", 1), ("PLAINTEXT2", "b", 2)]),
    ],
)
def test_addresses_are_parsed(text: str, expected: list[tuple[str, str, int]]) -> None:
    config = load_config(flags={"listeners": text})

    assert [Listener(*each) for each in expected] == list(config.listeners)


def test_listener_addresses_are_formatted_for_clients() -> None:
    assert ["[::1]:1", "PLAINTEXT://host:2"] == [
        Listener("PLAINTEXT", "::1", 1).address,
        str(Listener("PLAINTEXT", "host", 2)),
    ]


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_retention_follows_kafkas_order(flags: dict[str, str], expected: int) -> None:
    assert expected == load_config(flags=flags).retention_ms


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({}, "dense"),
        ({"storage": "redis://host"}, "timestamp"),
        ({"storage": "memory"}, "dense"),
        ({"offset.mapping": "timestamp"}, "timestamp"),
        ({"storage": "redis://host", "offset.mapping": "dense"}, "dense"),
    ],
)
def test_mapping_of_new_topics_depends_on_the_storage(flags: dict[str, str], expected: str) -> None:
    assert expected == load_config(flags=flags).default_offset_mapping


def test_memory_stands_for_its_url() -> None:
    assert "memory://" == load_config(flags={"storage": "memory"}).storage


# --- What is known of settings -----------------------------------------------------------------------------


def test_every_setting_has_a_description() -> None:
    described = settings()

    assert "log.message.timestamp.after.max.ms" in described
    for name, setting in described.items():
        assert name == setting.name
        assert setting.help
        assert setting.kind.accepted
        if name.endswith(".ms"):
            assert "ms" == setting.unit
        if name.endswith((".bytes", ".bytes.max")):
            assert "bytes" == setting.unit


def test_every_default_is_accepted() -> None:
    for setting in settings().values():
        if setting.default is not None and not isinstance(setting.default, tuple):
            assert setting.default == setting.kind.parse(setting.default)


# --- Secrets -----------------------------------------------------------------------------------------------


def test_secret_is_not_in_the_repr_of_the_settings() -> None:
    config = load_config(flags={"storage": "redis://:c4n4ry@localhost"})

    assert "storage=[hidden]" in repr(config)
    assert "c4n4ry" not in repr(config)


def test_error_about_a_secret_does_not_contain_it() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flags={"storage": "redis://:c4n4ry@localhost\n"})

    [error] = caught.value.errors
    assert error.startswith(
        "$.storage: the value, which is hidden, does not have that form (from command line); "
    )
