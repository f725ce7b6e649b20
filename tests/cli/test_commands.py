"""The client commands, against a broker in a separate process."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Korvet, Outcome
from tests.processes import KorvetProcess

JSON_LINES = """\
{"key": "UA", "value": "first", "headers": [["trace", "1"], ["trace", null]], "timestamp": 1767225600000}
{"key": null, "value": {"base64": "/wA="}, "timestamp": "2026-01-02T00:00:00Z"}
{"value": null, "key": "gone", "timestamp": 1767398400000}
"""


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A unique topic name for this test."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a program, and end it no later than the block, also if the test fails."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """A file of ten lines."""
    path = tmp_path / "numbers"
    path.write_text("".join(f"{number}\n" for number in range(10)))
    return str(path)


# --- topics -------------------------------------------------------------------------------------------------


def test_topic_is_created_listed_and_deleted(korvet: Korvet, topic: str) -> None:
    assert Outcome(0, "") == korvet(
        "topics", "create", topic, "--partitions", "3", "--set", "retention.ms=1000"
    )
    listed = json.loads(korvet("topics", "list", "--json").out)
    assert [3] == [each["partitions"] for each in listed if each["topic"] == topic]
    assert Outcome(0, "") == korvet("topics", "delete", topic, "--yes")
    assert topic not in korvet("topics", "list").out


def test_topics_are_listed_as_a_table(korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic)
    head, *rows = korvet("topics", "list").out.splitlines()

    assert ["TOPIC", "PARTITIONS", "ID"] == head.split()
    assert [topic, "1"] in [row.split()[:2] for row in rows]


def test_existing_topic_is_an_error_without_if_not_exists(korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic)
    again = korvet("topics", "create", topic)

    assert 1 == again.status
    assert again.err.startswith(f"korvet: {topic}: ")
    assert again.err.endswith("(TOPIC_ALREADY_EXISTS)\n")
    assert Outcome(0, "") == korvet("topics", "create", topic, "--if-not-exists")


def test_invalid_setting_value_is_refused_with_its_name(korvet: Korvet, topic: str) -> None:
    refused = korvet("topics", "create", topic, "--set", "retention.ms=soon")

    assert 1 == refused.status
    assert "retention.ms" in refused.err
    assert "INVALID_CONFIG" in refused.err


def test_describe_shows_partitions_with_their_first_and_next_offset(
    korvet: Korvet, topic: str, numbers: str
) -> None:
    korvet("topics", "create", topic)
    korvet("produce", topic, numbers)
    described = json.loads(korvet("topics", "describe", topic, "--json").out)[0]
    first, head, row = korvet("topics", "describe", topic).out.splitlines()

    assert 16 == len(base64.urlsafe_b64decode(described["id"] + "=="))
    assert [
        {"partition": 0, "leader": 1, "epoch": 0, "replicas": [1], "isr": [1], "first": 0, "next": 10}
    ] == described["partitions"]
    assert f"{topic}, id {described['id']}" == first
    assert ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "FIRST", "NEXT"] == head.split()
    assert ["0", "1", "0", "1", "1", "0", "10"] == row.split()


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_missing_topic_is_reported_by_name(korvet: Korvet, topic: str, command: str) -> None:
    missing = korvet("topics", command, topic)

    assert 1 == missing.status
    assert topic in missing.err
    assert missing.err.endswith("(UNKNOWN_TOPIC_OR_PARTITION)\n")
    assert 1 == missing.err.count("\n")


# --- produce and consume ------------------------------------------------------------------------------------


def test_produced_lines_are_consumed(korvet: Korvet, topic: str, numbers: str) -> None:
    assert Outcome(0, "") == korvet("produce", topic, numbers)
    assert Outcome(0, "".join(f"{number}\n" for number in range(10))) == korvet("consume", topic)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_of_every_compression_are_consumed_unchanged(
    korvet: Korvet, topic: str, numbers: str, compression: str
) -> None:
    korvet("produce", topic, numbers, "--compression", compression)

    assert korvet("consume", topic).out == Path(numbers).read_text()


def test_last_line_without_newline_is_a_record(piped: Korvet, topic: str) -> None:
    piped("produce", topic, stdin="a\n\nb")

    assert "a\n\nb\n" == piped("consume", topic).out


def test_many_lines_are_consumed_in_order(piped: Korvet, topic: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(100_000))
    assert Outcome(0, "") == piped("produce", topic, stdin=lines)

    assert lines == piped("consume", topic).out


def test_key_precedes_the_separator(korvet: Korvet, topic: str) -> None:
    korvet("produce", topic, "--key-separator", ": ", stdin="k: v\nv\n")

    assert "k=v\n=v\n" == korvet("consume", topic, "--key-separator", "=").out


def test_json_lines_contain_every_part_of_a_record(korvet: Korvet, topic: str) -> None:
    assert Outcome(0, "") == korvet("produce", topic, "--format", "json", stdin=JSON_LINES)
    records = [json.loads(line) for line in korvet("consume", topic, "--format", "json").out.splitlines()]

    assert [
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "timestamp": 1767225600000,
            "key": "UA",
            "value": "first",
            "headers": [["trace", "1"], ["trace", None]],
        },
        {
            "topic": topic,
            "partition": 0,
            "offset": 1,
            "timestamp": 1767312000000,
            "key": None,
            "value": {"base64": "/wA="},
        },
        {
            "topic": topic,
            "partition": 0,
            "offset": 2,
            "timestamp": 1767398400000,
            "key": "gone",
            "value": None,
        },
    ] == records


def test_json_output_of_consume_can_be_produced_to_another_topic(korvet: Korvet, topic: str) -> None:
    korvet("produce", topic, "--format", "json", stdin=JSON_LINES)
    lines = korvet("consume", topic, "--format", "json").out
    assert Outcome(0, "") == korvet("produce", f"{topic}-copy", "--format", "json", stdin=lines)

    assert korvet("consume", f"{topic}-copy", "--format", "json").out == lines.replace(topic, f"{topic}-copy")


def test_bad_line_is_named_and_lines_before_it_are_written(piped: Korvet, topic: str) -> None:
    bad = piped(
        "produce",
        topic,
        "--format",
        "json",
        stdin='{"value": "good"}\n\n{"value": oops}\n{"value": "late"}\n',
    )

    assert 1 == bad.status
    assert bad.err.startswith("korvet: line 3: not JSON: ")
    assert bad.err.endswith("; what stands before it is written\n")
    assert "good\n" == piped("consume", topic).out


def test_produce_and_consume_accept_a_partition(korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic, "--partitions", "3")
    lines = "".join(json.dumps({"value": str(p), "partition": p}) + "\n" for p in range(3))
    korvet("produce", topic, "--format", "json", stdin=lines)

    assert "1\n" == korvet("consume", topic, "-p", "1").out
    assert ["0", "2"] == sorted(korvet("consume", topic, "-p", "2", "-p", "0").out.split())
    assert 2 == korvet("consume", topic, "-p", "3").status


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--from", "start", "--max", "2"], "0 1"),
        (["--from", "7"], "7 8 9"),
        (["--from", "10"], ""),
        (["--from", "end"], ""),
        (["--time", "2026-01-08"], "7 8 9"),
        (["--time", "1767830400001"], "8 9"),
        (["--time", "2027-01-01"], ""),
        (["--until", "3"], "0 1 2"),
        (["--from", "2", "--until", "4"], "2 3"),
        (["--from", "5", "--until", "4"], ""),
        (["--until-time", "2026-01-03"], "0 1"),
        (["--time", "2026-01-02", "--until-time", "2026-01-04"], "1 2"),
        (["--until-time", "2027-01-01", "--from", "8"], "8 9"),
        (["--last", "3"], "7 8 9"),
        (["--last", "3", "--until", "5"], "2 3 4"),
        (["--last", "30"], "0 1 2 3 4 5 6 7 8 9"),
    ],
    ids=" ".join,
)
def test_consume_prints_the_given_part_of_the_log(
    korvet: Korvet, topic: str, arguments: list[str], expected: str
) -> None:
    lines = "".join(f'{{"value": "{day}", "timestamp": "2026-01-{day + 1:02}"}}\n' for day in range(10))
    korvet("produce", topic, "--format", "json", stdin=lines)

    assert expected.split() == korvet("consume", topic, *arguments).out.split()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--from", "middle"], "'middle' is neither start, end nor an offset."),
        (["--time", "soon"], "'soon' is not a time."),
        (["--from", "3", "--time", "2026-01-01"], "--from and --time exclude each other."),
        (["--format", "json", "--key-separator", ":"], "--key-separator is for text"),
        (["--format", "json", "--null", "-"], "--null is for text and format strings; JSON has null."),
        (["--format", "xml"], "'xml' is neither text, json nor a format string."),
        (["--format", "%s %x"], "there is no %x; accepted: %t %p "),
        (["--format", "%s\\q"], "there is no \\q; accepted: "),
        (["--last", "3", "--follow"], "--last excludes --from, --time and --follow."),
        (["--last", "3", "--from", "1"], "--last excludes --from, --time and --follow."),
        (["--until", "3", "--until-time", "2026-01-01"], "--until and --until-time exclude each other."),
        (["--until", "3", "--follow"], "--follow excludes --until and --until-time."),
    ],
    ids=" ".join,
)
def test_invalid_consume_options_are_refused(
    korvet: Korvet, topic: str, arguments: list[str], complaint: str
) -> None:
    refused = korvet("consume", topic, *arguments)

    assert 2 == refused.status
    assert complaint in refused.err
    assert 1 == refused.err.count("\n")


def test_format_string_has_the_tokens_of_kcat(korvet: Korvet, topic: str) -> None:
    lines = [
        '{"key": "k", "value": "v\\u00e4", "headers": [["a", "1"], ["b", null]], "timestamp": 17, "partition": 0}',
        '{"value": null, "timestamp": 18, "partition": 0}',
        '{"key": "", "value": "", "timestamp": 19, "partition": 0}',
    ]
    korvet("produce", topic, "--format", "json", stdin="\n".join(lines))

    printed = korvet("consume", topic, "--format", r"%t/%p/%o %T %K:%k %S:%s [%h] 100%%\x21\n").out
    with_dashes = korvet("consume", topic, "--format", r"%k=%s\t", "--null", "-").out

    assert [
        f"{topic}/0/0 17 1:k 3:vä [a=1,b=NULL] 100%!",
        f"{topic}/0/1 18 -1:NULL -1:NULL [] 100%!",
        f"{topic}/0/2 19 0: 0: [] 100%!",
    ] == printed.splitlines()
    assert "k=vä\t-=-\t=\t" == with_dashes


def test_null_and_empty_values_differ_in_text_if_requested(korvet: Korvet, topic: str) -> None:
    korvet("produce", topic, "--key-separator", ":", "--null", "-", stdin="a:\nb:-\nc\n")

    assert ["a:", "b:null", "null:c"] == korvet(
        "consume", topic, "--key-separator", ":", "--null", "null"
    ).out.split()


def test_several_topics_and_patterns_are_consumed(korvet: Korvet, topic: str) -> None:
    for number in range(3):
        korvet("produce", f"{topic}.{number}", stdin=f"{number}\n")

    several = korvet("consume", f"{topic}.0", f"{topic}.2").out.split()
    matching = korvet("consume", f"^{topic}\\.[01]$", "--format", "%t ").out.split()

    assert ["0", "2"] == sorted(several)
    assert [f"{topic}.0", f"{topic}.1"] == sorted(matching)


def test_last_records_are_those_of_all_partitions(korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic, "--partitions", "3")
    lines = "".join(
        f'{{"value": "{number}", "timestamp": {number}, "partition": {number % 3}}}\n'
        for number in range(100)
    )
    korvet("produce", topic, "--format", "json", stdin=lines)

    assert ["95", "96", "97", "98", "99"] == korvet("consume", topic, "--last", "5").out.split()


def test_last_records_are_found_across_gaps_of_offsets(korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic, "--set", "offset.mapping=timestamp")
    for value in "abc":
        korvet("produce", topic, stdin=f"{value}\n")

    assert ["b", "c"] == korvet("consume", topic, "--last", "2").out.split()


def test_text_lines_are_produced_with_key_headers_and_partition(korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic, "--partitions", "3")
    options = ("--key", "k", "--header", "a=1", "--header", "b=x=y", "--partition", "2")
    korvet("produce", topic, *options, stdin="v\n")

    printed = korvet("consume", topic, "--format", r"%p %k %s %h\n").out

    assert "2 k v a=1,b=x=y\n" == printed


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--key", "a", "--key-separator", ":"], "--key and --key-separator exclude each other."),
        (["--format", "json", "--key", "a"], "are for text; JSON has fields for them."),
        (["--header", "a"], "'a' is not NAME=VALUE."),
    ],
    ids=" ".join,
)
def test_invalid_produce_options_are_refused(
    korvet: Korvet, topic: str, arguments: list[str], complaint: str
) -> None:
    refused = korvet("produce", topic, *arguments)

    assert 2 == refused.status
    assert complaint in refused.err


@pytest.mark.parametrize(
    "pattern, complaint",
    [
        ("^no-such-topic", "No topic matches '^no-such-topic'."),
        ("^(", "'^(' is not a regular expression: "),
    ],
)
def test_pattern_without_a_topic_is_refused(korvet: Korvet, pattern: str, complaint: str) -> None:
    refused = korvet("consume", pattern)

    assert 2 == refused.status
    assert complaint in refused.err


def test_follow_waits_for_a_broker_that_is_away(short_folder: Path) -> None:
    with KorvetProcess(f"embedded:{short_folder}") as broker:
        program = [sys.executable, "-m", "korvet"]
        servers = ["-b", broker.bootstrap_servers]
        produce = [*program, "produce", "orders", *servers]
        subprocess.run(produce, input=b"early\n", check=True, timeout=30)
        with started(
            [*program, "consume", "orders", "--follow", "--timeout", "1", *servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as consumer:
            assert b"early\n" == consumer.stdout.readline()
            broker.kill()
            assert b"korvet: the broker does not answer; waiting for it\n" == consumer.stderr.readline()
            broker.start()
            subprocess.run(produce, input=b"late\n", check=True, timeout=30)
            assert b"late\n" == consumer.stdout.readline()
            assert b"korvet: the broker answers again\n" == consumer.stderr.readline()
            consumer.kill()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for embedded storage. A Unix socket's path may have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="kf-") as folder:
        yield Path(folder)


def test_follow_prints_later_records_and_ends_silently_on_ctrl_c(
    broker: KorvetProcess, korvet: Korvet, topic: str
) -> None:
    korvet("produce", topic, stdin="early\n")
    with started(
        [sys.executable, "-m", "korvet", "consume", topic, "--follow", "-b", broker.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        assert consumer.stdout is not None
        assert b"early\n" == consumer.stdout.readline()
        korvet("produce", topic, stdin="late\n")
        assert b"late\n" == consumer.stdout.readline()
        consumer.send_signal(signal.SIGINT)
        out, err = consumer.communicate(timeout=30)

    assert (b"", b"") == (out, err)
    assert 128 + signal.SIGINT == consumer.returncode


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_consume_ends_silently_when_its_output_is_closed(
    broker: KorvetProcess, korvet: Korvet, topic: str, unbuffered: str
) -> None:
    korvet("produce", topic, stdin="".join(f"line {number}\n" for number in range(100_000)))
    with started(
        [sys.executable, "-m", "korvet", "consume", topic, "-b", broker.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    ) as consumer:
        assert consumer.stdout is not None
        assert b"line 0\n" == consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.stderr is not None
        err = consumer.stderr.read()

    assert b"" == err
    assert 128 + signal.SIGPIPE == consumer.returncode


def test_typed_lines_are_sent_immediately(broker: KorvetProcess, korvet: Korvet, topic: str) -> None:
    korvet("topics", "create", topic)
    with (
        started(
            [sys.executable, "-m", "korvet", "produce", topic, "-b", broker.bootstrap_servers],
            stdin=subprocess.PIPE,
        ) as producer,
        started(
            [sys.executable, "-m", "korvet", "consume", topic, "-f", "-b", broker.bootstrap_servers],
            stdout=subprocess.PIPE,
        ) as consumer,
    ):
        assert producer.stdin is not None
        assert consumer.stdout is not None
        for line in (b"one\n", b"two\n"):
            producer.stdin.write(line)
            producer.stdin.flush()
            assert line == consumer.stdout.readline()
        producer.stdin.close()
        assert 0 == producer.wait(30)
        consumer.terminate()


# --- offsets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time, expected",
    [
        ("earliest", "0"),
        ("latest", "3"),
        ("max-timestamp", "2"),
        ("2026-01-02", "1"),
        ("1767225600001", "1"),
        ("-1", "3"),
        ("-2", "0"),
        ("-3", "2"),
        ("-4", "0"),
    ],
)
def test_offsets_are_printed_as_by_get_offset_shell(
    korvet: Korvet, topic: str, time: str, expected: str
) -> None:
    korvet("produce", topic, "--format", "json", stdin=JSON_LINES)

    assert Outcome(0, f"{topic}:0:{expected}\n") == korvet("offsets", topic, "--time", time)


@pytest.mark.parametrize("time", ["2030-01-01", "latest-tiered", "-5", "-6"])
def test_partition_without_a_matching_offset_is_not_printed(korvet: Korvet, topic: str, time: str) -> None:
    korvet("produce", topic, "--format", "json", stdin=JSON_LINES)

    assert Outcome(0, "") == korvet("offsets", topic, "--time", time)


def test_offsets_as_json_have_their_timestamps(korvet: Korvet, topic: str) -> None:
    korvet("produce", topic, "--format", "json", stdin=JSON_LINES)
    offsets = json.loads(korvet("offsets", topic, "--time", "earliest", "--json").out)

    assert [{"topic": topic, "partition": 0, "offset": 0, "timestamp": 1767225600000}] == offsets


# --- Errors -------------------------------------------------------------------------------------------------


def test_unreachable_broker_is_reported_in_one_line(korvet: Korvet) -> None:
    refused = korvet("topics", "list", "-b", "127.0.0.1:1")

    assert 1 == refused.status
    assert "korvet: 127.0.0.1:1: Connection refused. (NETWORK_EXCEPTION)\n" == refused.err


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["topic", "list"], "No such command 'topic'. Did you mean 'topics'?"),
        (["topics", "create"], "Missing argument 'TOPIC'."),
        (["topics", "list", "--nonsense"], "No such option"),
        (["topics", "create", "x", "--set", "y"], "'y' is not NAME=VALUE."),
        (["topics", "list", "-b", "host:port"], "'host:port' is not a broker address"),
        (
            ["offsets", "x", "--time", "newest"],
            "'newest' is neither latest, earliest, max-timestamp, earliest-local, latest-tiered,",
        ),
        (["offsets", "x", "--time", "-7"], "'-7' is neither latest,"),
        (["topics", "list", "--timeout", "nan"], "'--timeout': 'nan' is not a number."),
        (["top", "--interval", "nan"], "'--interval': 'nan' is not a number."),
        (["fault", "add", "freeze", "--port", "1", "--probability", "x"], "'x' is not a number."),
        (["produce", "x", "/no/such/file"], "/no/such/file"),
    ],
    ids=" ".join,
)
def test_usage_errors_print_one_line_and_exit_with_2(
    korvet: Korvet, arguments: list[str], complaint: str
) -> None:
    refused = korvet(*arguments)

    assert 2 == refused.status
    assert complaint in refused.err
    assert 1 == refused.err.count("\n")


@pytest.mark.parametrize("group", ["topics", "groups", "config", "lake"])
def test_group_without_a_command_prints_its_help(korvet: Korvet, group: str) -> None:
    refused = korvet(group)

    assert (2, "") == (refused.status, refused.out)
    assert refused.err.startswith(f"Usage: korvet {group} [OPTIONS] COMMAND")
    assert "(See korvet" not in refused.err


def test_internal_errors_print_one_line_with_a_hint_to_the_traceback(
    korvet: Korvet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("korvet.cli.topics.with_client", broken)
    failed = korvet("topics", "list")

    assert 1 == failed.status
    expected = (
        "korvet: ZeroDivisionError: a slip (an error in korvet; KORVET_TRACEBACK=1 prints the traceback)\n"
    )
    assert expected == failed.err


def test_library_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    """The library's own library may be missing, as in an image without libstdc++."""
    (tmp_path / "google_crc32c.py").write_text("raise ImportError('libstdc++.so.6: cannot open')")
    failed = subprocess.run(
        [sys.executable, "-m", "korvet", "serve", "--storage", "memory:", "--listeners", "127.0.0.1:0"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (1, 1) == (failed.returncode, failed.stderr.count("\n")), failed.stderr
    assert "korvet: ImportError: libstdc++.so.6: cannot open (an error in korvet;" in failed.stderr


def test_version_is_that_of_the_package(korvet: Korvet) -> None:
    assert Outcome(0, "korvet 0.1.0\n") == korvet("--version")


@pytest.mark.parametrize("command", ["serve", "topics", "produce", "consume", "offsets"])
def test_every_command_has_help(korvet: Korvet, command: str) -> None:
    helped = korvet(command, "--help")

    assert 0 == helped.status
    assert helped.out.startswith(f"Usage: korvet {command}")
    assert max(map(len, helped.out.splitlines())) <= 80


def test_refused_lines_are_reported_with_the_lines_written_before_them(korvet: Korvet, topic: str) -> None:
    lines = ["short"] * 25_000 + ["x" * 2_000_000, "after"]
    outcome = korvet("produce", topic, stdin="\n".join(lines))

    found = re.fullmatch(
        r"korvet: lines ([\d,]+) to ([\d,]+) are not written, or only in part: .*"
        r"\(MESSAGE_TOO_LARGE\); lines 1 to ([\d,]+) are written\n",
        outcome.err,
    )
    assert found is not None, outcome.err
    first, last, written = (int(number.replace(",", "")) for number in found.groups())
    assert 1 == outcome.status
    assert first == written + 1 <= 25_001 <= last
    stored = korvet("consume", topic).out.splitlines()
    assert written <= len(stored) <= 25_000


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["produce", "consume"])
def test_commands_accept_closed_standard_streams(
    broker: KorvetProcess, korvet: Korvet, topic: str, command: str, closed: str
) -> None:
    korvet("produce", topic, stdin="one\n")
    program = f"{shlex.quote(sys.executable)} -m korvet {command} {topic} -b {broker.bootstrap_servers}"
    done = subprocess.run(
        ["sh", "-c", f"exec {program} {closed}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_timeout_ends_a_command_when_the_broker_does_not_answer(piped: Korvet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        outcome = piped("topics", "list", "-b", address, "--timeout", "0.5")

    assert 1 == outcome.status
    assert 1 == outcome.err.count("\n")
    assert time.monotonic() - began_s < 15


# --- consume --group ----------------------------------------------------------------------------------------


def test_group_continues_after_the_records_it_has_printed(korvet: Korvet, topic: str, numbers: str) -> None:
    korvet("produce", topic, numbers)

    assert Outcome(0, "0\n1\n2\n") == korvet("consume", topic, "--group", topic, "--max", "3")
    assert Outcome(0, "".join(f"{number}\n" for number in range(3, 10))) == korvet(
        "consume", topic, "--group", topic
    )
    assert Outcome(0, "") == korvet("consume", topic, "--group", topic)


def test_group_from_the_end_prints_nothing(korvet: Korvet, topic: str, numbers: str) -> None:
    korvet("produce", topic, numbers)

    assert Outcome(0, "") == korvet("consume", topic, "--group", topic, "--from", "end")


@pytest.mark.parametrize(
    "options",
    [
        ["--partition", "0"],
        ["--last", "1"],
        ["--until", "5"],
        ["--until-time", "2026-01-01"],
        ["--time", "2026-01-01"],
        ["--from", "5"],
    ],
)
def test_group_excludes_other_starts_and_ends(korvet: Korvet, options: list[str]) -> None:
    done = korvet("consume", "t", "--group", "g", *options)

    assert 2 == done.status
    assert "--group excludes " in done.err


def test_static_member_stays_in_the_group(korvet: Korvet, topic: str, numbers: str) -> None:
    korvet("produce", topic, numbers)
    command = ["consume", topic, "--group", topic, "--group-instance-id", "one"]

    assert Outcome(0, "0\n1\n") == korvet(*command, "--max", "2")
    assert Outcome(0, "".join(f"{number}\n" for number in range(2, 10))) == korvet(*command)
    (row,) = json.loads(korvet("groups", "describe", topic, "--json").out)
    assert 0 == row["lag"]
    assert row["member-id"].startswith("one-")


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--group-instance-id", "one"], "needs --group"),
        (["--group", "g", "--group-instance-id", ""], "is empty"),
        (["--group", ""], "--group is empty"),
    ],
)
def test_group_instance_id_that_cannot_be_used_is_refused(
    korvet: Korvet, options: list[str], expected: str
) -> None:
    done = korvet("consume", "t", *options)

    assert 2 == done.status
    assert expected in done.err


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_commits_and_leaves_the_group(
    broker: KorvetProcess, korvet: Korvet, topic: str, numbers: str, number: int, status: int
) -> None:
    korvet("produce", topic, numbers)
    command = [sys.executable, "-m", "korvet", "consume", topic, "--group", topic, "--follow"]
    command += ["-b", broker.bootstrap_servers]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in range(10):
            assert f"{line}\n" == process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)

    assert (status, "") == (process.returncode, err)
    (row,) = json.loads(korvet("groups", "describe", topic, "--json").out)
    assert (0, None) == (row["lag"], row["member-id"])
