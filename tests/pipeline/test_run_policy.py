"""Policies from lake.toml and topic settings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from korvet.config import ConfigError
from korvet.pipeline.run.policy import LakeFile, Policy, read_lake_file

UNTERMINATED = (
    """$.topics."(x": is neither a name nor a regular expression: """
    "missing ), unterminated subpattern at position 0"
)


def read(folder: Path, text: str) -> LakeFile:
    path = folder / "lake.toml"
    path.write_text(text)
    return read_lake_file(path)


def policy(file: LakeFile, topic: str, **given: str) -> Policy:
    found = file.policy(topic, {name.replace("_", "."): value for name, value in given.items()})
    assert found is not None
    return found


def test_section_overrides_topic_settings_which_override_defaults(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
        lake = "lake"
        [defaults]
        lag = "60s"
        retain = "10d"
        flush_bytes = "8MB"
        iceberg = true
        [topics."orders.*"]
        lag = "5s"
        """,
    )

    found = policy(file, "orders-1", korvet_lake_lag_ms="7000", korvet_lake_retention_ms="-1")

    assert (5.0, math.inf, 8_000_000, True) == (
        found.lag_s,
        found.retain_s,
        found.flush_bytes,
        found.iceberg,
    )
    assert 7.0 == policy(file, "other", korvet_lake_enable="TRUE", korvet_lake_lag_ms="7000").lag_s


def test_section_of_the_name_precedes_patterns_and_the_first_pattern_precedes_others(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
        lake = "lake"
        [topics."a.*"]
        lag = "1s"
        [topics.".*b"]
        lag = "2s"
        [topics.ab]
        lag = "3s"
        """,
    )

    assert [3.0, 1.0, 2.0] == [policy(file, topic).lag_s for topic in ("ab", "aab", "bb")]


@pytest.mark.parametrize(
    "topic, given, is_enabled",
    [
        ("in-the-file", {}, True),
        ("in-the-file", {"korvet.lake.enable": "false"}, False),
        ("forced", {"korvet.lake.enable": "false"}, True),
        ("off", {"korvet.lake.enable": "true"}, False),
        ("other", {}, False),
        ("other", {"korvet.lake.enable": "true"}, True),
        ("other", {"remote.storage.enable": "true"}, True),
        ("other", {"remote.storage.enable": "true", "korvet.lake.enable": "false"}, False),
    ],
)
def test_topics_are_enabled_by_the_file_or_by_their_settings(
    tmp_path: Path, topic: str, given: dict[str, str], is_enabled: bool
) -> None:
    file = read(
        tmp_path,
        """
        lake = "lake"
        [topics.in-the-file]
        [topics.forced]
        enable = true
        [topics.off]
        enable = false
        """,
    )

    assert is_enabled == (file.policy(topic, given) is not None)


def test_patterns_and_defaults_do_not_enable_internal_topics(tmp_path: Path) -> None:
    file = read(tmp_path, 'lake = "lake"\ndefaults.enable = true\n[topics.".*"]\n')

    assert file.policy("__consumer_offsets", is_internal=True) is None
    assert file.policy("orders") is not None


def test_file_without_a_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lake.toml: \$\.lake: is missing"):
        read(tmp_path, "")


def test_decode_settings_of_all_sources_are_merged(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
        lake = "lake"
        [defaults]
        on_error = "skip"
        decode = {format = "avro", registry = "http://registry:8081"}
        [topics.raw]
        decode = false
        [topics.keyed]
        decode = {upsert = true}
        """,
    )

    keyed = policy(file, "keyed").decode
    json = policy(
        file,
        "pages",
        korvet_lake_enable="true",
        korvet_lake_decode="json",
        korvet_lake_on_error="stop",
    ).decode

    assert policy(file, "raw").decode is None
    assert keyed is not None
    assert ("avro", "http://registry:8081", True, "skip") == (
        keyed.format,
        keyed.registry,
        keyed.upsert,
        keyed.on_error,
    )
    assert json is not None
    assert ("json", "http://registry:8081", "stop") == (json.format, json.registry, json.on_error)
    assert file.policy("x", {"korvet.lake.enable": "true", "korvet.lake.decode": "none"}) == Policy("x")


def test_topic_settings_that_need_more_are_a_fault_of_the_topic(tmp_path: Path) -> None:
    file = read(tmp_path, 'lake = "lake"\n')

    with pytest.raises(ConfigError, match=r"decode\.schema_file: avro needs schema_file, or registry"):
        file.policy("pages", {"korvet.lake.enable": "true", "korvet.lake.decode": "avro"})


def test_all_faults_of_the_file_are_reported_with_near_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(
            tmp_path,
            """
            lake = 3
            storag = {}
            [defaults]
            lag = 60
            retian = "3d"
            keep_files = "1h"
            max_bad_ratio = 2
            [topics."(x"]
            flush_bytes = "many"
            decode = 7
            """,
        )

    lines = [line.partition(": ")[2] for line in refused.value.errors]
    assert [
        "$.storag: there is no such setting; is storage meant?",
        "$.defaults.retian: there is no such setting; is retain meant?",
        "$.defaults.lag: 60 is not a duration such as 60s",
        "$.defaults.max_bad_ratio: 2 is not a number from 0 to 1",
        """$.topics."(x".flush_bytes: 'many' is not a size; accepted: 128MB, 1GB, 500kB, 1000000.""",
        """$.topics."(x".decode: 7 is neither a format, false, nor a table of settings""",
        UNTERMINATED,
        "$.lake: 3 is not a text",
    ] == lines


@pytest.mark.parametrize(
    "text, fault",
    [
        ("defaults.lag = '50ms'", "$.defaults.lag: must be at least 0.1 s"),
        ("defaults.keep_files = '23h'", "$.defaults.keep_files: must be at least 24h"),
        ("defaults.max_bad_rows = -1", "$.defaults.max_bad_rows: must be at least 0"),
        (
            "defaults.decode = {formt = 'json'}",
            "$.defaults.decode.formt: there is no such setting; is format",
        ),
        ("topics = 3", "$.topics: is not a section"),
        ("defaults = 3", "$.defaults: is not a section"),
        ("lake =", "is not valid TOML"),
    ],
)
def test_faults_are_reported(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f'lake = "lake"\n{text}\n')

    assert fault in str(refused.value)


@pytest.mark.parametrize(
    "records, bad, text",
    [
        (1000, 10, ""),
        (1000, 11, "11 bad rows, more than max_bad_rows = 10"),
        (20, 5, "5 of 20 rows are bad, more than max_bad_ratio = 0.2"),
        (0, 0, ""),
    ],
)
def test_exceeded_thresholds_are_named(records: int, bad: int, text: str) -> None:
    assert text == Policy("t", max_bad_rows=10, max_bad_ratio=0.2).exceeded(records, bad)


def test_faults_of_the_catalogue_are_reported_with_those_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(
            tmp_path,
            """
            lake = "lake"
            [register]
            type = "unity"
            uri = "host:8080"
            namespace = "raw"
            catalogue = "main"
            [defaults]
            registr = false
            """,
        )

    assert [
        "$.defaults.registr: there is no such setting; is register meant?",
        "$.register.catalogue: there is no such setting; is catalog meant?",
        "$.register.catalog: is missing; unity needs it",
        "$.register.uri: 'host:8080' is not a URL such as https://host",
    ] == [line.partition(": ")[2] for line in refused.value.errors]


def test_tables_are_registered_unless_a_policy_says_otherwise(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
        lake = "lake"
        [register]
        type = "hive"
        uri = "thrift://metastore:9083"
        [topics.orders]
        [topics.pages]
        register = false
        """,
    )

    assert {"type": "hive", "uri": "thrift://metastore:9083"} == file.register
    assert (True, False) == (policy(file, "orders").register, policy(file, "pages").register)


def test_names_of_properties_may_have_dots_without_quotes(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
        lake = "lake"
        [spark]
        spark.executor.memory = "4g"
        [catalog]
        s3.endpoint = "http://store"
        [register]
        type = "glue"
        glue.region = "eu-west-1"
        """,
    )

    assert {"spark.executor.memory": "4g"} == file.spark
    assert {"s3.endpoint": "http://store"} == file.catalog
    assert {"type": "glue", "glue.region": "eu-west-1"} == file.register


@pytest.mark.parametrize("section", ["register", "catalog", "storage", "spark"])
def test_section_that_is_a_value_is_a_fault(tmp_path: Path, section: str) -> None:
    with pytest.raises(ConfigError, match=rf"\$\.{section}: is not a section"):
        read(tmp_path, f'lake = "lake"\n{section} = true\n')
