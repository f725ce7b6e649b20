"""`korvet lake archive` without Spark: invalid usage is reported before anything is started or written."""

# ruff: noqa: F811  the fixture of another folder

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from korvet.cli.lake.archive import lag_text
from korvet.cli.lake.options import parsed_location
from korvet.pipeline.archive import TopicProgress
from korvet.pipeline.archive_plan import Rows
from tests.cli.conftest import Korvet, korvet  # noqa: F401  a fixture
from tests.pipeline.archiving import archived, values
from tests.pipeline.support import Cluster
from tests.processes import KorvetProcess


@pytest.fixture(scope="session")
def broker(memory: Cluster) -> KorvetProcess:
    """Return the broker for the fixture `korvet`."""
    host, _, port = memory.bootstrap_servers.partition(":")
    return KorvetProcess(host=host, port=int(port))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--topics", "a", "--lake", "lake"], "One of --once and --every is needed."),
        (
            ["--topics", "a", "--lake", "lake", "--once", "--every", "3s"],
            "One of --once and --every is needed.",
        ),
        (
            ["--topics", "a", "--lake", "lake", "--every", "soon"],
            "'soon' is not a duration. Accepted: PT1H30M, P7D, 90s, 1h30m, 500ms.",
        ),
        (["--topics", "a", "--lake", "lake", "--once", "--timeout", "0"], "0.0 is not in the range x>0."),
        (["--topics", "a(b", "--lake", "lake", "--once"], "'a(b' is neither a name nor a regular expression"),
        (["--topics", ",", "--lake", "lake", "--once"], "it names no topic"),
        (
            ["--topics", "a", "--lake", "gopher://x/y", "--once"],
            "accepted are a path, file:///path, s3://bucket/prefix, gs://bucket/prefix and abfss://",
        ),
        (["--topics", "a", "--lake", "lake", "--once", "-b", "nowhere:0"], "is not a broker address"),
        (["--topics", "a", "--lake", "s3://b/l", "--once", "--storage-option", "x"], "'x' is not NAME=VALUE"),
        (["--lake", "lake", "--once"], "Missing option '-t' / '--topics'"),
        (["--topics", "a", "--lake", "lake", "--once", "--spark-conf", "x=1"], "'x' is not a Spark setting"),
        (
            ["--topics", "a", "--lake", "lake", "--once", "--command-config", "/dev/null/none"],
            "File '/dev/null/none' does not exist",
        ),
    ],
)
def test_usage_errors_are_reported_in_one_line(
    korvet: Korvet,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = korvet("lake", "archive", *arguments)

    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_storage_options_include_the_environment_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_REGION", "here")
    location = parsed_location("s3://bucket/lake", ("AWS_REGION=there",))
    monkeypatch.undo()

    assert {
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_REGION": "there",
    }.items() <= location.storage_options().items()
    assert "hush" not in repr(location)


@pytest.mark.parametrize(
    "text, message",
    [
        ("security.protocol=SASL_SSL\n", "client.properties: sasl.mechanism is missing; accepted are PLAIN"),
        (
            "security.protocol=SSL\nssl.truststore.location=/none.jks\n",
            "cannot be read: /none.jks: No such file",
        ),
        (
            "security.protocol=SASL\nsasl.password=hush\n",
            "security.protocol is 'SASL'; accepted are PLAINTEXT",
        ),
    ],
)
def test_invalid_client_properties_are_reported_in_one_line(
    korvet: Korvet, text: str, message: str, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text(text)
    given = ["--topics", "a", "--lake", str(tmp_path / "lake"), "--once", "--command-config", str(properties)]
    outcome = korvet("lake", "archive", *given)

    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert "hush" not in outcome.err


def test_bootstrap_servers_option_overrides_the_client_properties(
    korvet: Korvet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=127.0.0.1:1\n")
    monkeypatch.delenv("KORVET_BOOTSTRAP_SERVERS", raising=False)
    named = korvet("topics", "list", "--command-config", str(properties))
    given = korvet("topics", "list", "-b", "127.0.0.1:2", "--command-config", str(properties))
    monkeypatch.setenv("KORVET_COMMAND_CONFIG", str(properties))
    found = korvet("topics", "list")

    assert ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"] == [
        outcome.err.removeprefix("korvet: ").partition(": ")[0] for outcome in (named, given, found)
    ]


def test_unreachable_broker_is_reported_in_one_line(
    korvet: Korvet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.archive.ATTEMPTS", 1)
    outcome = korvet(
        "lake", "archive", "--topics", "a", "--lake", str(tmp_path), "--once", "-b", "127.0.0.1:1"
    )

    assert (outcome.status, outcome.err) == (
        1,
        "korvet: 127.0.0.1:1: Connection refused. (NETWORK_EXCEPTION)\n",
    )


def test_missing_java_is_reported_with_the_required_version(
    korvet: Korvet,
    topic: str,
    memory: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory.create(topic)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    outcome = korvet("lake", "archive", "--topics", topic, "--lake", str(tmp_path / "lake"), "--once")

    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert "Spark needs Java 17 or newer" in outcome.err
    assert not (tmp_path / "lake").exists()


def test_missing_spark_extra_is_reported_with_the_install_command(
    korvet: Korvet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("korvet.pipeline.archive")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    outcome = korvet("lake", "archive", "--topics", "a", "--lake", str(tmp_path), "--once")

    assert outcome.status == 1
    assert "requires: pip install 'korvet[spark]'" in outcome.err


def test_missing_topic_is_reported_and_the_exit_status_is_1(
    korvet: Korvet,
    topic: str,
    memory: Cluster,
    tmp_path: Path,
) -> None:
    memory.create(topic)
    memory.produce(topic, values(3))
    archived(memory.bootstrap_servers, topic, tmp_path)
    outcome = korvet("lake", "archive", "--topics", f"{topic},missing", "--lake", str(tmp_path), "--once")

    assert outcome.status == 1
    assert outcome.out.splitlines() == [
        "missing: 0 records, 0 B (0 B in files), lag 0; failed: There is no topic missing.",
        f"{topic}: 0 records, 0 B (0 B in files), lag 0",
    ]


def test_options_are_read_from_a_config_file(
    korvet: Korvet, topic: str, memory: Cluster, tmp_path: Path
) -> None:
    memory.create(topic)
    settings = tmp_path / "lake.toml"
    settings.write_text(f'topics = "{topic}"\nto = "{tmp_path / "lake"}"\nonce = true\n')
    outcome = korvet("lake", "archive", "--config", str(settings))

    assert (outcome.status, outcome.out) == (0, f"{topic}: 0 records, 0 B (0 B in files), lag 0\n")


def test_config_file_with_an_unknown_setting_is_refused(korvet: Korvet, tmp_path: Path) -> None:
    settings = tmp_path / "lake.toml"
    settings.write_text('topcs = "a"\n')
    outcome = korvet("lake", "archive", "--config", str(settings))

    assert outcome.status == 2
    assert (
        "there is no topcs; accepted are accept-gap, bootstrap-servers, command-config, every" in outcome.err
    )


def test_status_audit_and_vacuum_of_an_archive(
    korvet: Korvet, topic: str, memory: Cluster, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(3))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, values(2))
    shown = korvet("lake", "status", "--lake", str(tmp_path)).out.splitlines()
    audited = korvet("lake", "audit", "--lake", str(tmp_path))
    vacuumed = korvet("lake", "vacuum", "--lake", str(tmp_path), "--dry-run")

    assert shown[0].split() == ["TOPIC", "PARTITION", "LOG_START", "ARCHIVED", "LATEST", "LAG", "WAITING"]
    assert shown[1].split()[:6] == [topic, "0", "0", "3", "5", "2"]
    assert (audited.status, audited.out) == (0, f"{topic}: 3 records, all accounted for\n")
    assert (vacuumed.status, vacuumed.out) == (0, f"{topic}: 0 files would be removed\n")


def test_vacuum_goes_on_when_a_table_fails(
    korvet: Korvet, topic: str, memory: Cluster, tmp_path: Path
) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        memory.create(name)
        archived(memory.bootstrap_servers, name, tmp_path)
    (tmp_path / names[0] / "_iceberg").mkdir()
    (tmp_path / names[0] / "_iceberg" / "snap-1.avro").touch()
    outcome = korvet("lake", "vacuum", "--lake", str(tmp_path))

    assert (1, f"{names[1]}: 0 files were removed\n") == (outcome.status, outcome.out)
    assert outcome.err.startswith(
        f"korvet: {names[0]}: {tmp_path}/{names[0]}/_iceberg has no metadata of an "
    )
    assert 1 == outcome.err.count("\n")


def test_audit_with_findings_exits_with_1(
    korvet: Korvet, topic: str, memory: Cluster, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(3))
    archived(memory.bootstrap_servers, topic, tmp_path)
    for path in (tmp_path / topic / "_delta_log").glob("00000000000000000002.json"):
        kept = [line for line in path.read_text().splitlines() if '"add"' not in line]
        path.write_text("\n".join(kept) + "\n")
    outcome = korvet("lake", "audit", "--lake", str(tmp_path), "--offline")

    assert outcome.status == 1
    assert outcome.out.startswith(f"{topic}-0 offsets 0 to 2: archived, and not in the table's files\n")


@pytest.mark.parametrize(
    "lags, said",
    [
        ([], "0"),
        ([(7, True, None)], "7"),
        ([(7, True, Rows(50, 1.0)), (0, False, None)], "7"),
        ([(10_240, False, Rows(50, 1024.0))], "about 10"),
        ([(1_838_403_918_499_816, False, None)], "unknown"),
        ([(10_240, False, Rows(50, 1024.0)), (1_000_000, False, None)], "unknown"),
    ],
)
def test_lag_is_printed_in_records_when_the_offset_density_is_known(
    lags: list[tuple[int, bool, Rows | None]], said: str
) -> None:
    topics = [TopicProgress("t", lag=lag, counts_records=counts, rows=rows) for lag, counts, rows in lags]
    assert lag_text(topics) == said


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["audit"],
        ["audit", "--offline"],
        ["compact"],
        ["retain", "--older-than", "1d"],
        ["vacuum"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_status_of_a_location_without_archives_is_an_error(
    korvet: Korvet, command: list[str], place: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    outcome = korvet("lake", *command, "--lake", str(tmp_path / place))

    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert f"There is no archive of a topic at {tmp_path / place}" in outcome.err


@pytest.mark.parametrize(
    "command",
    [
        ("archive", "--topics", "a", "--once", "--to"),
        ("status", "--at"),
        ("replay", "a", "--into", "b", "--from"),
        ("decode", "--topics", "a", "--once", "--typed", "typed", "--at"),
        ("decode", "--topics", "a", "--once", "--lake", "lake", "--to"),
    ],
)
def test_options_of_earlier_versions_are_accepted_and_not_shown(
    korvet: Korvet, command: tuple[str, ...]
) -> None:
    refused = korvet("lake", *command, "gopher://x/y")
    shown = korvet("lake", command[0], "--help").out

    assert "there are no tables at gopher://" in refused.err
    assert f"{command[-1]} " not in shown
    assert "--lake URL" in shown


def test_options_of_earlier_versions_are_accepted_in_files(korvet: Korvet, tmp_path: Path) -> None:
    file = tmp_path / "archive.toml"
    file.write_text('to = "gopher://x/y"\ntopics = "a"\nonce = true\n')

    assert "there are no tables at gopher://" in korvet("lake", "archive", "--config", str(file)).err
