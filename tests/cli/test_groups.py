"""`korvet groups`, against a broker in a separate process, with real consumers as members."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.client.committed_offsets import time_between
from korvet.client.groups import assigned_partitions
from tests.cli.conftest import Korvet, Outcome
from tests.processes import KorvetProcess

LIMIT_S = 30.0


@pytest.fixture
def records(tmp_path: Path) -> str:
    """A file of ten records for each of two partitions."""
    path = tmp_path / "records"
    path.write_text("".join(f'{{"value": "", "partition": {number % 2}}}\n' for number in range(20)))
    return str(path)


@pytest.fixture
def topic(request: pytest.FixtureRequest, korvet: Korvet, records: str) -> str:
    """A topic for this test only, with two partitions and ten records in each."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)
    korvet("topics", "create", name, "--partitions", "2", "--set", "offset.mapping=dense")
    fill(korvet, records, name)
    return name


def fill(korvet: Korvet, records: str, topic: str) -> None:
    assert Outcome(0, "") == korvet("produce", topic, "--format", "json", records)


def committed_offsets(korvet: Korvet, group: str) -> dict[int, int]:
    rows = json.loads(korvet("groups", "describe", group, "--json").out)
    return {row["partition"]: row["current-offset"] for row in rows}


# --- Groups with members ------------------------------------------------------------------------------------


@define
class Members:
    """Two consumers of a topic with one partition, polled in a thread: one has it, the other has nothing."""

    group: str
    consumers: list[Consumer]
    assigned: threading.Event = field(factory=threading.Event)
    stopping: threading.Event = field(factory=threading.Event)

    def poll(self, topic: str) -> None:
        settled: set[int] = set()  # consumers with an assignment, also an empty one
        for number, consumer in enumerate(self.consumers):
            consumer.subscribe([topic], on_assign=lambda *_, number=number: settled.add(number))
        while not self.stopping.is_set():
            for consumer in self.consumers:
                message = consumer.poll(0.05)
                # Records that were read before the second consumer joined are read again.
                if len(settled) == 2 and message is not None and message.offset() == 2:
                    consumer.commit(asynchronous=False)
                    self.assigned.set()


@pytest.fixture(scope="module")
def members(broker: KorvetProcess) -> Iterator[Members]:
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    topic = "read-by-members"
    admin = AdminClient(settings)
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result(LIMIT_S)
    producer = Producer(settings)
    for number in range(3):
        producer.produce(topic, str(number))
    assert not producer.flush(LIMIT_S)
    consumers = [
        Consumer(
            settings
            | {
                "group.id": "with-members",
                "client.id": f"client-{number}",
                "group.instance.id": f"instance-{number}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        for number in range(2)
    ]
    members = Members("with-members", consumers)
    thread = threading.Thread(target=members.poll, args=(topic,))
    thread.start()
    try:
        assert members.assigned.wait(LIMIT_S)
        yield members
    finally:
        members.stopping.set()
        thread.join()
        for consumer in consumers:
            consumer.close()


@pytest.mark.clients
def test_describe_shows_members_with_and_without_partitions(korvet: Korvet, members: Members) -> None:
    rows = json.loads(korvet("groups", "describe", members.group, "--json").out)
    head, *lines = korvet("groups", "describe", members.group).out.splitlines()
    reader, idle = rows

    assert ("read-by-members", 0, 3, 3, 0) == tuple(
        reader[key] for key in ("topic", "partition", "current-offset", "log-end-offset", "lag")
    )
    assert (None, None, None, None, None) == tuple(
        idle[key] for key in ("topic", "partition", "current-offset", "log-end-offset", "lag")
    )
    assert {"client-0", "client-1"} == {row["client-id"] for row in rows}
    assert {"/127.0.0.1"} == {row["host"] for row in rows}
    assert all(row["member-id"].startswith(row["instance-id"]) for row in rows)
    assert [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "MEMBER-ID", "HOST", "CLIENT-ID"
    ] == head.split()  # fmt: skip
    assert ["with-members", "read-by-members", "0", "3", "3", "0", reader["member-id"]] == lines[0].split()[
        :7
    ]
    assert ["with-members", "-", "-", "-", "-", "-", idle["member-id"]] == lines[1].split()[:7]


@pytest.mark.clients
def test_describe_shows_members_and_state(korvet: Korvet, members: Members) -> None:
    rows = json.loads(korvet("groups", "describe", members.group, "--members", "--json").out)
    state = korvet("groups", "describe", members.group, "--state").out.splitlines()[1].split()

    assert [[], ["read-by-members-0"]] == sorted(row["assignment"] for row in rows)
    assert {"instance-0", "instance-1"} == {row["instance-id"] for row in rows}
    assert ["with-members", "range", "consumer", "Stable", "2"] == [state[0], *state[2:]]


@pytest.mark.clients
def test_group_with_members_cannot_be_reset_or_deleted(korvet: Korvet, members: Members) -> None:
    reset = korvet("groups", "reset-offsets", members.group, "--all-topics", "--to-earliest", "--execute")
    deleted = korvet("groups", "delete", members.group)

    assert (
        Outcome(
            1,
            "",
            "korvet: group with-members is Stable and has 2 members; offsets can be reset once it is Empty.\n",
        )
        == reset
    )
    assert deleted.err.endswith("(NON_EMPTY_GROUP)\n")
    assert {0: 3} == {
        key: value for key, value in committed_offsets(korvet, members.group).items() if key is not None
    }


@pytest.mark.clients
def test_groups_are_listed_by_state_and_type(korvet: Korvet, members: Members, topic: str) -> None:
    korvet("groups", "reset-offsets", "nobody", "--topic", topic, "--to-latest", "--execute")

    def listed(*options: str) -> set[str]:
        return {row["group"] for row in json.loads(korvet("groups", "list", "--json", *options).out)}

    assert {"nobody", members.group} <= listed()
    assert members.group in listed("--state", "stable", "--type", "classic")
    assert "nobody" not in listed("--state", "Stable")
    assert "nobody" in listed("--state", "Empty", "--state", "Stable")
    assert set() == listed("--type", "share")
    row = next(line for line in korvet("groups", "list").out.splitlines() if line.startswith("with-members "))
    assert ["with-members", "classic", "Stable", "consumer"] == row.split()


# --- Groups without members ---------------------------------------------------------------------------------


def test_describe_reports_a_group_without_members(korvet: Korvet, topic: str) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-offset", "4", "--execute")
    described = korvet("groups", "describe", topic)

    assert f"{topic} has no members.\n" == described.err
    assert [[topic, topic, str(n), "4", "10", "6", "-", "-", "-"] for n in range(2)] == [
        line.split() for line in described.out.splitlines()[1:-1]
    ]


def test_all_groups_are_described(korvet: Korvet, topic: str) -> None:
    for group in (f"{topic}-a", f"{topic}-b"):
        korvet("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    rows = json.loads(korvet("groups", "describe", "--all", "--json").out)

    assert {f"{topic}-a", f"{topic}-b"} <= {row["group"] for row in rows}


def test_lag_under_timestamp_mapping_counts_records(
    korvet: Korvet, records: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    korvet("topics", "create", "clock", "--partitions", "2", "--set", "offset.mapping=timestamp")
    fill(korvet, records, "clock")
    korvet("groups", "reset-offsets", "late", "--topic", "clock", "--to-earliest", "--execute")
    korvet("groups", "reset-offsets", "there", "--topic", "clock", "--to-latest", "--execute")
    late = json.loads(korvet("groups", "describe", "late", "--json").out)
    there = json.loads(korvet("groups", "describe", "there", "--json").out)

    assert [10, 10, 0, 0] == [row["lag"] for row in late + there]
    assert not any(row["lag-is-at-least"] for row in late + there)
    assert all(0 < row["lag-ms"] < 60_000 for row in late)
    assert [0, 0] == [row["lag-ms"] for row in there]
    monkeypatch.setattr("korvet.client.committed_offsets.COUNTED_RECORDS", 4)
    assert ["4+", "4+"] == [
        line.split()[5] for line in korvet("groups", "describe", "late").out.splitlines()[1:-1]
    ]
    assert "total lag: 8+" == korvet("groups", "describe", "late").out.splitlines()[-1]


@pytest.mark.parametrize(
    "offset, end, expected", [(0, 0, 0), (5 << 10, 5 << 10, 0), ((2 << 10) + 1, (5 << 10) + 1, 3), (9, 10, 1)]
)
def test_time_between_offsets(offset: int, end: int, expected: int) -> None:
    assert expected == time_between(offset, end, 10)


@pytest.mark.parametrize("options", [[], ["a", "--all"], ["a", "--members", "--state"]])
def test_describe_refuses_missing_and_conflicting_options(korvet: Korvet, options: list[str]) -> None:
    assert 2 == korvet("groups", "describe", *options).status


@pytest.mark.parametrize(
    "arguments",
    [["describe", "nobody-knows"], ["delete", "nobody-knows"]],
    ids=lambda arguments: arguments[0],
)
def test_missing_group_is_reported_by_name(korvet: Korvet, arguments: list[str]) -> None:
    outcome = korvet("groups", *arguments)

    assert (1, "") == (outcome.status, outcome.out)
    assert re.fullmatch(r"korvet: group nobody-knows: .*\(GROUP_ID_NOT_FOUND\)\n", outcome.err)


def test_delete_names_each_group_that_does_not_exist(korvet: Korvet, topic: str) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-earliest", "--execute")
    outcome = korvet("groups", "delete", "no-1", topic, "no-2")

    assert 1 == outcome.status
    assert ["no-1", "no-2"] == re.findall(
        r"^korvet: group (\S+): .*\(GROUP_ID_NOT_FOUND\)$", outcome.err, re.MULTILINE
    )
    assert topic not in korvet("groups", "list").out


# --- Resets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target, expected",
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-current"], 4),
        (["--to-offset", "7"], 7),
        (["--shift-by", "3"], 7),
        (["--shift-by", "-1"], 3),
        (["--to-datetime", "1970-01-02"], 0),
        (["--by-duration", "P30D"], 0),
        (["--to-time", "4102444800000"], 10),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_offsets_are_reset_to_the_target(
    korvet: Korvet, topic: str, target: list[str], expected: int
) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-offset", "4", "--execute")
    dry = korvet("groups", "reset-offsets", topic, "--all-topics", *target)
    before = committed_offsets(korvet, topic)
    done = korvet("groups", "reset-offsets", topic, "--all-topics", *target, "--execute")

    assert {0: 4, 1: 4} == before
    assert "Nothing was altered; --execute does it.\n" == dry.err
    assert (0, dry.out, "") == (done.status, done.out, done.err)
    assert ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"] == dry.out.splitlines()[0].split()
    assert [[topic, topic, str(n), "4", str(expected)] for n in range(2)] == [
        line.split() for line in dry.out.splitlines()[1:]
    ]
    assert {0: expected, 1: expected} == committed_offsets(korvet, topic)


def test_only_the_named_partitions_are_reset(korvet: Korvet, topic: str) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-offset", "4", "--execute")
    outcome = korvet(
        "groups", "reset-offsets", topic, "--topic", f"{topic}:1", "--to-latest", "--execute", "--json"
    )

    assert [
        {"group": topic, "topic": topic, "partition": 1, "current-offset": 4, "new-offset": 10}
    ] == json.loads(outcome.out)
    assert {0: 4, 1: 10} == committed_offsets(korvet, topic)


@pytest.mark.parametrize(
    "target, said, expected",
    [
        (["--to-offset", "1000"], "1000 is beyond the end; it becomes 10.", 10),
        (["--shift-by", "-50"], "-46 is below the first offset; it becomes 0.", 0),
    ],
    ids=["beyond", "below"],
)
def test_offsets_out_of_range_are_clamped_with_a_warning(
    korvet: Korvet, topic: str, target: list[str], said: str, expected: int
) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-offset", "4", "--execute")
    outcome = korvet("groups", "reset-offsets", topic, "--topic", topic, *target, "--execute")

    assert f"korvet: {topic}-0: {said}\nkorvet: {topic}-1: {said}\n" == outcome.err
    assert {0: expected, 1: expected} == committed_offsets(korvet, topic)


def test_shift_under_timestamp_mapping_prints_a_warning(korvet: Korvet, records: str) -> None:
    korvet("topics", "create", "shifted", "--partitions", "2", "--set", "offset.mapping=timestamp")
    fill(korvet, records, "shifted")
    korvet("groups", "reset-offsets", "shift", "--topic", "shifted", "--to-latest", "--execute")
    outcome = korvet("groups", "reset-offsets", "shift", "--topic", "shifted", "--shift-by", "-1")

    assert (
        "shifted: offsets follow the clock (offset.mapping=timestamp), 1024 to a millisecond" in outcome.err
    )


@pytest.mark.parametrize(
    "options, said",
    [
        (["--to-earliest"], "Name --topic, or --all-topics."),
        (["--topic", "t", "--all-topics", "--to-earliest"], "Name --topic, or --all-topics."),
        (["--all-topics"], "Name one of --to-earliest, "),
        (["--all-topics", "--to-earliest", "--to-latest"], "Name one of --to-earliest, "),
        (["--all-topics", "--to-offset", "0", "--shift-by", "0"], "Name one of --to-earliest, "),
        (["--all-topics", "--to-datetime", "tomorrow"], "'tomorrow' is not a time."),
        (["--all-topics", "--by-duration", "1w"], "'1w' is not a duration."),
        (["--all-topics", "--to-offset", "-1"], "-1 is not in the range x>=0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_reset_options_are_refused_with_the_accepted_ones(
    korvet: Korvet, options: list[str], said: str
) -> None:
    outcome = korvet("groups", "reset-offsets", "g", *options)

    assert (2, "") == (outcome.status, outcome.out)
    assert said in outcome.err
    assert 1 == outcome.err.count("\n")


@pytest.mark.parametrize(
    "options, said",
    [
        (["--all-topics", "--to-earliest"], "group {} has no offsets; name a --topic."),
        (["--topic", "{}", "--shift-by", "1"], "{}-0 cannot be shifted: the group has no offset there."),
        (["--topic", "{}:2", "--to-latest"], "{} has 2 partitions; there is no '2'."),
        (["--topic", "{}:", "--to-latest"], "{} has 2 partitions; there is no ''."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_reset_is_refused_with_the_reason(
    korvet: Korvet, topic: str, options: list[str], said: str
) -> None:
    outcome = korvet(
        "groups", "reset-offsets", topic, *(option.format(topic) for option in options), "--execute"
    )

    assert outcome.status > 0
    assert said.format(topic) in outcome.err
    assert 1 == outcome.err.count("\n")
    assert 1 == korvet("groups", "describe", topic).status


# --- Assignments --------------------------------------------------------------------------------------------

ASSIGNMENT = (
    b"\x00\x01" b"\x00\x00\x00\x02"
    b"\x00\x01b" b"\x00\x00\x00\x02" b"\x00\x00\x00\x03\x00\x00\x00\x01"
    b"\x00\x01a" b"\x00\x00\x00\x01" b"\x00\x00\x00\x00"
    b"\xff\xff\xff\xff"
)  # fmt: skip


def test_assignment_is_parsed() -> None:
    assert (("a", 0), ("b", 1), ("b", 3)) == assigned_partitions(ASSIGNMENT)
    assert () == assigned_partitions(b"")


@pytest.mark.parametrize("size", [3, 8, 9, 12, 20])
def test_truncated_assignment_is_refused(size: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  struct's words, or ours
        assigned_partitions(ASSIGNMENT[:size])


def test_assignment_with_a_topic_beyond_its_end_is_refused() -> None:
    broken: Any = ASSIGNMENT[:6] + b"\xff\xff" + ASSIGNMENT[8:]
    with pytest.raises(ValueError, match="longer than the assignment"):
        assigned_partitions(broken)


# --- reset-offsets from and to a file -----------------------------------------------------------------------


def test_offsets_are_written_to_a_file_and_restored_from_it(
    korvet: Korvet, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "offsets.csv"
    korvet("groups", "reset-offsets", topic, "--topic", topic, "--to-offset", "4", "--execute")

    done = korvet("groups", "reset-offsets", topic, "--all-topics", "--to-current", "--to-file", str(file))
    assert Outcome(0, "", "Nothing was altered; --execute does it.\n") == done
    assert f"{topic},0,4\n{topic},1,4\n" == file.read_text()
    korvet("groups", "reset-offsets", topic, "--all-topics", "--to-latest", "--execute")
    korvet("groups", "reset-offsets", topic, "--from-file", str(file), "--execute")
    assert {0: 4, 1: 4} == committed_offsets(korvet, topic)


def test_file_of_several_groups_resets_only_the_named_one(korvet: Korvet, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f'"{topic}","{topic}",1,7\nanother,{topic},0,3\n\n')
    korvet("groups", "reset-offsets", topic, "--from-file", str(file), "--execute")

    assert {1: 7} == committed_offsets(korvet, topic)


@pytest.mark.parametrize(
    "line, status, message",
    [
        ("t;0;5", 2, "line 1: it has 1 fields. Accepted: topic,partition,offset or"),
        ("t,zero,5", 2, "line 1: partition and offset are not whole numbers."),
        ("t,0,-5", 2, "line 1: partition and offset are not whole numbers."),
        ("another,t,0,5", 2, "has no offsets of group g."),
        ("", 2, "has no offsets of group g."),
    ],
)
def test_unusable_file_is_refused_in_one_line(
    korvet: Korvet, tmp_path: Path, line: str, status: int, message: str
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(line)
    done = korvet("groups", "reset-offsets", "g", "--from-file", str(file), "--execute")

    assert (status, 1) == (done.status, done.err.count("\n")), done.err
    assert message in done.err


def test_total_lag_is_the_last_line(korvet: Korvet, topic: str) -> None:
    korvet("groups", "reset-offsets", topic, "--topic", f"{topic}:1", "--to-offset", "4", "--execute")

    assert "total lag: 6" == korvet("groups", "describe", topic).out.splitlines()[-1]
