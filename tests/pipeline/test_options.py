from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from korvet.client.isolation import READ_COMMITTED, READ_UNCOMMITTED
from korvet.client.model import TopicPartition
from korvet.client.security import Sasl, Security
from korvet.pipeline.offsets import (
    Bound,
    SpecificOffsets,
    SpecificTimestamps,
    WrongOption,
    from_json,
    to_json,
)
from korvet.pipeline.options import read_options, write_options
from korvet.protocol.compression import Codec

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = read_options({**SERVERS, "subscribe": "a"}, streaming=True)

    assert (Bound.LATEST, Bound.LATEST) == (options.starting, options.ending)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert READ_UNCOMMITTED == options.isolation_level
    assert 900 == options.max_trigger_delay_s
    assert Bound.EARLIEST == read_options({**SERVERS, "subscribe": "a"}, streaming=False).starting


def test_option_names_and_values_are_case_insensitive() -> None:
    given = {"SUBSCRIBE": "a, b", "FailOnDataLoss": "FALSE", "kafka.isolation.level": "read_committed"}
    options = read_options({**SERVERS, **given}, streaming=False)

    assert ("a", "b") == options.subscription.topics
    assert not options.fail_on_data_loss
    assert READ_COMMITTED == options.isolation_level


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"startingOffsets": "earliest"}, Bound.EARLIEST),
        ({"startingOffsets": '{"a":{"0":23,"1":-1}}'}, SpecificOffsets({A0: 23, A1: -1})),
        ({"startingTimestamp": "1000"}, SpecificTimestamps(1000, or_latest=False)),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":1000}}',
                "startingOffsetsByTimestampStrategy": "latest",
                "startingOffsets": "latest",
            },
            SpecificTimestamps({A0: 1000}, or_latest=True),
        ),
        (
            {"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"a":{"0":2}}'},
            SpecificTimestamps(1, or_latest=False),
        ),
    ],
    ids=["name", "offsets", "time", "times before offsets", "one time before all"],
)
def test_starting_offsets_options_have_sparks_precedence(given: dict[str, str], expected: object) -> None:
    assert expected == read_options({**SERVERS, "subscribe": "a", **given}, streaming=True).starting


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "exactly one of assign, subscribe and subscribePattern is accepted, not none"),
        ({"subscribe": "a", "assign": "{}"}, "not assign and subscribe"),
        ({"subscribe": " "}, "subscribe is empty; accepted is a topic's name, or several with commas"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"assign": '{"a":[-1]}'}, 'accepted: {"orders":[0,1]}'),
        ({"assign": "{}"}, "no partition is named"),
        ({"subscribe": "a", "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"subscribe": "a", "path": "x"}, "there is no option path"),
        ({"subscribe": "a", "startingOffsets": "first"}, "earliest, latest, or JSON is"),
        ({"subscribe": "a", "startingOffsets": '{"a":0}'}, 'accepted: {"orders":{"0":23,"1":-1}}'),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "does not have the accepted form"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":true}}'}, "does not have the accepted form"),
        (
            {"subscribe": "a", "startingOffsets": "latest"},
            "would read nothing; a batch read accepts earliest",
        ),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "would read nothing; accepted are latest"),
        ({"subscribe": "a", "startingTimestamp": "noon"}, "milliseconds since 1970 are"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false is"),
        ({"subscribe": "a", "minPartitions": "0"}, "a whole number above 0 is"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "say 15m"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than"),
        ({"subscribe": "a", "kafka.isolation.level": "x"}, "read_uncommitted or read_committed is"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "is not accepted: use startingOffsets"),
        ({"subscribe": "a", "kafka.isolaton.level": "x"}, "did you mean kafka.isolation.level?"),
        ({"subscribe": "a", "kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        (
            {"subscribe": "a", "kafka.bootstrap.servers": "h:x"},
            "is not a broker address; accepted: host:port",
        ),
    ],
    ids=lambda given: ",".join(f"{k}={v}" for k, v in given.items()) if isinstance(given, dict) else "",
)
def test_invalid_options_are_refused_with_the_accepted_values(given: dict[str, str], said: str) -> None:
    with pytest.raises(WrongOption) as raised:
        read_options({**SERVERS, **given}, streaming=False)

    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_stream_has_no_end() -> None:
    with pytest.raises(WrongOption, match="endingOffsets is not accepted here: it is for batch reads"):
        read_options({**SERVERS, "subscribe": "a", "endingOffsets": "latest"}, streaming=True)


# Settings of Kafka 4.3's producers and consumers without effect here, and one that Kafka 4.0 has dropped.
TUNING = {
    "kafka.session.timeout.ms": "1",
    "kafka.group.id": "g",
    "groupIdPrefix": "p",
    "kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
    "kafka.partitioner.ignore.keys": "true",
    "kafka.partitioner.adaptive.partitioning.enable": "false",
    "kafka.partitioner.availability.timeout.ms": "1",
    "kafka.compression.gzip.level": "1",
    "kafka.compression.lz4.level": "1",
    "kafka.compression.zstd.level": "1",
    "kafka.security.providers": "com.example.Provider",
    "kafka.ssl.provider": "SunJSSE",
    "kafka.auto.include.jmx.reporter": "true",
    "kafka.metadata.recovery.strategy": "rebootstrap",
    "kafka.metadata.recovery.rebootstrap.trigger.ms": "1",
    "kafka.group.protocol": "classic",
    "kafka.group.remote.assignor": "uniform",
    "kafka.auto.commit.interval.ms": "1",
    "kafka.share.acquire.mode": "batch_optimized",
    "kafka.sasl.kerberos.service.name": "kafka",
    "kafka.sasl.kerberos.ticket.renew.jitter": "0.05",
    "kafka.sasl.oauthbearer.clock.skew.seconds": "30",
}


def test_kafka_client_tuning_options_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, writing = {**SERVERS, "subscribe": "a"}, {**SERVERS, "topic": "a"}
    only_kafka = {name: text for name, text in TUNING.items() if name.startswith("kafka.")}

    assert read_options(reading, streaming=False) == read_options({**reading, **TUNING}, streaming=False)
    (warning,) = caplog.messages
    assert warning.startswith('these options have no effect on format("korvet"): ')
    assert {*only_kafka, "groupidprefix"} == set(warning.partition(": ")[2].split(", "))
    assert write_options(writing) == write_options({**writing, **only_kafka})
    assert 2 == len(caplog.messages)  # once in each process for the same names


@pytest.mark.parametrize("name", ["sasl.login.class", "ssl.engine.factory.class"])
def test_unsupported_security_options_are_refused(name: str) -> None:
    with pytest.raises(WrongOption, match=f"there is no option kafka.{name}"):
        write_options({**SERVERS, "topic": "a", f"kafka.{name}": "x"})


LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="hush";'


def test_source_and_sink_accept_kafka_security_options() -> None:
    given = {
        **SERVERS,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": LOGIN,
        "kafka.sasl.login.read.timeout.ms": "1",
    }
    expected = Security(sasl=Sasl("SCRAM-SHA-512", "alice", "hush"))
    options = read_options({**given, "subscribe": "a"}, streaming=True)

    assert expected == options.connecting.security
    assert expected == write_options({**given, "topic": "a"}).connecting.security
    assert "hush" not in repr(options)


def test_invalid_security_options_are_reported_under_their_option_names() -> None:
    with pytest.raises(WrongOption, match="kafka.sasl.mechanism is 'GSSAPI'; accepted are PLAIN, SCRAM-SHA"):
        write_options({**SERVERS, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"})
    with pytest.raises(
        WrongOption, match="there is no option kafka.sasl.mechanisms .did you mean kafka.sasl"
    ):
        write_options({**SERVERS, "kafka.sasl.mechanisms": "PLAIN"})


def test_write_options_differ_from_read_options() -> None:
    options = write_options({**SERVERS, "topic": "a", "kafka.compression.type": "zstd", "kafka.acks": "1"})

    assert ("a", Codec.ZSTD, 1) == (options.topic, options.codec, options.acks)
    with pytest.raises(WrongOption, match="there is no option subscribe"):
        write_options({**SERVERS, "subscribe": "a"})
    with pytest.raises(WrongOption, match="none, gzip, snappy, lz4 or zstd is"):
        write_options({**SERVERS, "kafka.compression.type": "brotli"})


def test_offsets_survive_a_checkpoint() -> None:
    offsets = {TopicPartition("b", 10): 2**60, TopicPartition("b", 9): 0, TopicPartition("a", 0): 5}

    ids = {"a": UUID(int=1)}

    assert (offsets, ids) == from_json(to_json(offsets, ids))
    assert ["a", "b"] == list(to_json(offsets))


def test_options_about_sparks_own_client_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = {"groupIdPrefix": "mine", "fetchOffset.numRetries": "7", "fetchOffset.retryIntervalMs": "9"}
    read_options({**SERVERS, "subscribe": "a", **given}, streaming=True)

    (warning,) = caplog.messages
    assert warning.endswith("groupidprefix, fetchoffset.numretries, fetchoffset.retryintervalms")


def test_servers_may_have_a_protocol_as_in_java() -> None:
    servers = {"kafka.bootstrap.servers": "PLAINTEXT://a:9092, SASL_SSL://[::1]:9093,b"}
    assert read_options({**servers, "subscribe": "a"}, streaming=True).connecting.bootstrap_servers
    with pytest.raises(WrongOption, match="'PLAINTEXT://' is not a broker address"):
        read_options({"kafka.bootstrap.servers": "PLAINTEXT://", "subscribe": "a"}, streaming=True)


@pytest.mark.parametrize(
    "java, matching, other",
    [
        (r"\Qa.b\E-.*", "a.b-1", "aXb-1"),
        (r"\p{Alpha}+", "orders", "orders1"),
        (r"[\p{Lower}_]+", "or_ders", "Orders"),
        (r"\P{Digit}+", "orders", "orders1"),
        (r"(?<name>a|b)\k<name>", "aa", "ab"),
        (r"(?i)ORDERS\z", "orders", "order"),
        (r"orders-\d++", "orders-17", "orders-"),
        (r"a\[&&", "a[&&", "a"),
    ],
)
def test_pattern_is_one_of_javas(java: str, matching: str, other: str) -> None:
    subscription = read_options({**SERVERS, "subscribePattern": java}, streaming=True).subscription

    assert subscription.matches(matching)
    assert not subscription.matches(other)


@pytest.mark.parametrize(
    "java, said",
    [
        (r"[a-z&&[^b]]", "a class inside of a class is not supported|&& in a class is not supported"),
        (r"\p{Runic}", r"\\p\{Runic\} is not supported; accepted are ASCII, Alnum"),
        ("(", "missing \\), unterminated subpattern"),
    ],
)
def test_pattern_that_is_not_supported_is_refused_with_the_reason(java: str, said: str) -> None:
    with pytest.raises(WrongOption, match=f"subscribePattern=.* is not a regular expression: (?:{said})"):
        read_options({**SERVERS, "subscribePattern": java}, streaming=True)


FILE_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"


def test_configuration_providers_replace_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka.properties").write_text("# no\nname = alice\npassword=a=b\n")
    (tmp_path / "name").write_text("bob")
    monkeypatch.setenv("KAFKA_SERVERS", "localhost:9092")
    package = FILE_PROVIDER.rpartition(".")[0]
    given = {
        "kafka.config.providers": "file, dir,env",
        "kafka.config.providers.file.class": FILE_PROVIDER,
        "kafka.config.providers.dir.class": f"{package}.DirectoryConfigProvider",
        "kafka.config.providers.env.class": f"{package}.EnvVarConfigProvider",
        "kafka.bootstrap.servers": "${env:KAFKA_SERVERS}",
        "kafka.client.id": f"${{dir:{tmp_path}:name}}-${{other:x}}",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": f"${{file:{tmp_path}/kafka.properties:name}}",
        "kafka.sasl.password": f"${{file:{tmp_path}/kafka.properties:password}}",
    }
    connecting = read_options({**given, "subscribe": "a"}, streaming=True).connecting

    assert "localhost:9092" == connecting.bootstrap_servers
    assert "bob-${other:x}" == connecting.client_id
    assert Sasl("PLAIN", "alice", "a=b") == connecting.security.sasl


@pytest.mark.parametrize(
    "given, said",
    [
        ({"kafka.config.providers": "file"}, "kafka.config.providers.file.class is missing; accepted are"),
        (
            {"kafka.config.providers": "v", "kafka.config.providers.v.class": "com.example.Vault"},
            "kafka.config.providers.v.class names com.example.Vault, which only Java runs; accepted are",
        ),
        (
            {"kafka.config.providers": "file", "kafka.config.providers.file.class": FILE_PROVIDER},
            r"kafka.client.id: \$\{file:/none:x\}: No such file or directory",
        ),
    ],
)
def test_configuration_providers_are_refused_with_the_reason(given: dict[str, str], said: str) -> None:
    with pytest.raises(WrongOption, match=said):
        read_options(
            {**SERVERS, "subscribe": "a", "kafka.client.id": "${file:/none:x}", **given}, streaming=True
        )


def test_login_handlers_of_java_are_accepted_if_the_client_does_their_work(tmp_path: Path) -> None:
    given = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "file:///token",
        "kafka.sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
    }
    options = {**SERVERS, "subscribe": "a", **given}
    assert "/token" == getattr(
        read_options(options, streaming=True).connecting.security.sasl, "token_file", ""
    )
    options["kafka.sasl.login.callback.handler.class"] = "com.example.Mine"
    with pytest.raises(
        WrongOption, match="names com.example.Mine, which only Java runs; accepted are org.apache"
    ):
        read_options(options, streaming=True)
    handler = {"kafka.sasl.client.callback.handler.class": "com.example.Mine"}
    with pytest.raises(
        WrongOption, match="names com.example.Mine, which only Java runs; accepted is software.am"
    ):
        read_options({**SERVERS, "subscribe": "a", **handler}, streaming=True)
