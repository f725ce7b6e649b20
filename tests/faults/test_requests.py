"""Which part of a request a fault selects, and the errors that answer it, for all APIs in all versions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest

from korvet.faults.requests import Selection, groups_of, has_error, merged, refusal, topic_ids
from korvet.handlers import APIS
from korvet.protocol.codec import decode
from korvet.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from korvet.protocol.response_errors import ERROR_CODES
from korvet.protocol.schema import schema_of
from tests.protocol.samples import encoded, sample

CODE = 42
VERSIONS = [
    pytest.param(key, version, id=f"{api.name}-v{version}")
    for key, api in APIS.items()
    for version in range(api.min_version, api.max_version + 1)
]


def codes_in(message: Any, version: int) -> Iterator[int]:
    """Yield the error codes of a message and of the structs inside it."""
    for field in schema_of(type(message)).fields:
        if version not in field.versions:
            continue
        value = getattr(message, field.name)
        if field.name in ERROR_CODES:
            yield value
        elif field.struct is not None and field.is_array:
            for each in value or ():
                yield from codes_in(each, version)


@pytest.mark.parametrize("key, version", VERSIONS)
def test_every_api_answers_an_error_in_every_version(key: int, version: int) -> None:
    api = APIS[key]
    request = sample(api.request, version, Random(version))

    refused = refusal(api.response, request, version, CODE, is_part=False)
    decoded = decode(api.response, version, memoryview(encoded(refused, version)))[0]

    assert has_error(api.response, version)
    assert {CODE} == {*codes_in(decoded, version)}


def commit(**topics: list[int]) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=0, committed_metadata=None
                    )
                    for number in numbers
                ],
            )
            for name, numbers in topics.items()
        ],
    )


@pytest.mark.parametrize(
    "selection, inside, outside",
    [
        (Selection(), {"a": [0, 1], "b": [0]}, None),
        (Selection("a"), {"a": [0, 1]}, {"b": [0]}),
        (Selection("a", 1), {"a": [1]}, {"a": [0], "b": [0]}),
        (Selection(partition=0), {"a": [0], "b": [0]}, {"a": [1]}),
        (Selection("c"), None, {"a": [0, 1], "b": [0]}),
        (Selection("a", 7), None, {"a": [0, 1], "b": [0]}),
    ],
)
def test_request_is_split_by_topic_and_partition(
    selection: Selection, inside: dict[str, list[int]] | None, outside: dict[str, list[int]] | None
) -> None:
    expected = tuple(None if each is None else commit(**each) for each in (inside, outside))

    assert expected == selection.split(commit(a=[0, 1], b=[0]), {})


def test_topics_by_id_and_by_name_alone_are_selected() -> None:
    topic_id = UUID(int=7)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    fetch = FetchRequest(
        max_wait_ms=1, min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])]
    )
    deletion = DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1)

    assert [topic_id] == [*topic_ids(fetch)]
    assert (fetch, None) == Selection("a").split(fetch, {topic_id: "a"})
    assert None is Selection("a").split(fetch, {})[0]
    assert ["a"] == Selection("a").split(deletion, {})[0].topic_names
    assert None is Selection("a").split(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), {})[0]


def test_groups_are_found_under_their_different_names() -> None:
    assert ["g"] == groups_of(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    assert ["g"] == groups_of(FindCoordinatorRequest(key="g"))
    assert ["g", "h"] == groups_of(FindCoordinatorRequest(coordinator_keys=["g", "h"]))


def test_refused_part_is_merged_with_the_response_to_the_rest() -> None:
    refused = refusal(OffsetCommitResponse, commit(a=[1]), 8, CODE, is_part=True)
    response = refusal(OffsetCommitResponse, commit(b=[0]), 8, 0, is_part=True)

    found = merged(response, refused, 8)

    assert [("b", 0, 0), ("a", 1, CODE)] == [
        (topic.name, each.partition_index, each.error_code)
        for topic in found.topics
        for each in topic.partitions
    ]


def test_topics_of_log_directories_are_entries_of_the_response() -> None:
    topics = [AlterReplicaLogDirTopic(name=name, partitions=[0, 1]) for name in ("a", "b")]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/x", topics=topics)])

    refused = refusal(AlterReplicaLogDirsResponse, request, 2, CODE, is_part=False)

    assert [("a", [(0, CODE), (1, CODE)]), ("b", [(0, CODE), (1, CODE)])] == [
        (each.topic_name, [(p.partition_index, p.error_code) for p in each.partitions])
        for each in refused.results
    ]
