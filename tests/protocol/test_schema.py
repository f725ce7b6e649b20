from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from mypy import api as mypy

from korvet.protocol.codec import encode
from korvet.protocol.errors import UnsupportedVersion
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from korvet.protocol.schema import ZERO_UUID, is_flexible, parse_versions, schema_of, versions_of
from tests.protocol.samples import MESSAGES, structs_of


@pytest.mark.parametrize(
    "text, inside, outside",
    [("3", [3], [2, 4]), ("3-9", [3, 9], [2, 10]), ("3+", [3, 32767], [2, -1]), ("none", [], [0, 32767])],
)
def test_version_ranges_are_parsed_as_in_kafkas_specifications(
    text: str, inside: list[int], outside: list[int]
) -> None:
    versions = parse_versions(text)

    assert all(version in versions for version in inside)
    assert not any(version in versions for version in outside)


def test_schema_contains_key_versions_and_flexible_versions() -> None:
    assert (1, range(4, 19)) == (schema_of(FetchRequest).key, versions_of(FetchRequest))
    assert (False, True, True) == tuple(is_flexible(FetchRequest, version) for version in (11, 12, 99))


def test_constructor_uses_kafkas_defaults() -> None:
    request = FetchRequest(
        max_wait_ms=1, min_bytes=2, topics=[FetchTopic(topic_id=UUID(int=5), partitions=[])]
    )

    expected = FetchRequest(
        cluster_id=None,
        replica_id=-1,
        replica_state=None,
        max_wait_ms=1,
        min_bytes=2,
        max_bytes=0x7FFFFFFF,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic="", topic_id=UUID(int=5), partitions=[])],
        forgotten_topics_data=[],
        rack_id="",
    )

    assert expected == request
    assert ZERO_UUID == FetchTopic(partitions=[]).topic_id


def test_constructor_requires_fields_without_default() -> None:
    with pytest.raises(TypeError, match="high_watermark"):
        PartitionData(partition_index=1, records=None)  # type: ignore[call-arg]


def test_default_lists_are_not_shared_between_objects() -> None:
    one, two = (FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]) for _ in range(2))

    one.forgotten_topics_data.append(...)  # type: ignore[arg-type]

    assert [] == two.forgotten_topics_data


def test_objects_have_slots_only_so_a_misspelt_field_is_an_error() -> None:
    for struct in {struct for message in MESSAGES for struct in structs_of(message)}:
        with pytest.raises(AttributeError):
            object.__new__(struct).no_such_field = 1


def test_struct_inside_a_message_is_not_sent_by_itself() -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)

    with pytest.raises(UnsupportedVersion, match="FetchPartition"):
        encode(partition, 12, [].append)


@pytest.mark.slow
def test_type_checker_checks_constructors_and_declarations(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
from korvet.protocol.messages.fetch import FetchRequest, FetchTopic
from korvet.protocol.schema import array, int32, string, struct

FetchTopic(topic="orders", partitions=[])
FetchTopic(topic=b"orders", partitions=[])  # wrong type
FetchTopic(topic="orders")  # partitions missing
FetchTopic("orders", partitions=[])  # by position
FetchRequest(max_wait_ms=1, min_bytes=1, topics=None)  # null where null cannot stand
FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]).topic  # misspelt

@struct
class Declared:
    name: str = string(nullable="3+")  # the annotation lacks None
    numbers: list[str] = array(int32)  # not what is read
"""
    )

    output, _, _ = mypy.run(["--strict", "--no-error-summary", "--no-pretty", str(program)])
    wrong = {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}

    assert {6, 7, 8, 9, 10, 14, 15} == wrong
