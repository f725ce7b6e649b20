"""The comparison itself: it ignores values that must differ, and nothing else."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from conformance.comparison import Difference, Found, compare, together
from conformance.peers import BATCHES, KAFKA, MEMORY, OURS, RECORDS, Peer
from conformance.talk import CLOSED, Step, Talk
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from korvet.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from korvet.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from korvet.protocol.messages.offset_delete import OffsetDeleteResponse
from korvet.protocol.record_batch import build_batch

SCOPE = "s0001v02"
TOPIC = f"{SCOPE}-orders"


def talk(name: str, *answers: tuple[str, int, Any], dense: bool = True, keeps_batches: bool = True) -> Talk:
    """Return a finished conversation with these responses, by API and version."""
    peer = Peer(name, 0, dense=dense, keeps_batches=keeps_batches)
    steps = [Step("", api, version, answer) for api, version, answer in answers]
    return Talk(peer, SCOPE, steps=steps)


def differences(api: str, version: int, kafka: Any, ours: Any) -> list[tuple[str, str, str]]:
    """Return the differences between two responses: field, and both values."""
    found = compare("x", version, talk(KAFKA, (api, version, kafka)), talk(MEMORY, (api, version, ours)))
    return [(one.field, one.kafka, one.korvet) for one in found]


def deleted(*results: tuple[str, ErrorCode, str | None], version: int = 6) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=name, error_code=code, error_message=message, topic_id=UUID(int=version)
            )
            for name, code, message in results
        ]
    )


def listed(offset: int) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=0, offset=offset, timestamp=-1)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[partition])])


def fetched(*batches: bytearray) -> FetchResponse:
    data = PartitionData(partition_index=0, high_watermark=2, records=list(batches))
    return FetchResponse(session_id=0, responses=[FetchableTopicResponse(topic=TOPIC, partitions=[data])])


def joined(*members: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        protocol_name="range",
        leader=members[0],
        member_id=members[0],
        members=[JoinGroupResponseMember(member_id=member, metadata=b"") for member in members],
    )


def test_planted_difference_is_found() -> None:
    kafka = deleted((TOPIC, ErrorCode.NONE, None))
    ours = deleted((TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None))

    assert [("responses[orders].error_code", "NONE", "UNKNOWN_TOPIC_OR_PARTITION")] == (
        differences("DeleteTopics", 6, kafka, ours)
    )


def test_equal_responses_do_not_differ() -> None:
    assert [] == differences("ListOffsets", 7, listed(5), listed(5))


def test_member_ids_are_compared_by_the_member_they_identify() -> None:
    assert [] == differences("JoinGroup", 5, joined("kafka-1", "kafka-2"), joined("ours-1", "ours-2"))

    other_leader = joined("ours-1", "ours-2")
    other_leader.leader = "ours-2"
    assert ("leader", "member 1", "member 2") in (
        differences("JoinGroup", 5, joined("kafka-1", "kafka-2"), other_leader)
    )


def test_error_messages_may_differ_but_not_be_missing() -> None:
    code = ErrorCode.INVALID_REQUEST
    silent, wordy, other = (deleted((TOPIC, code, text)) for text in (None, "why", "because"))

    assert [] == differences("DeleteTopics", 6, wordy, other)
    assert [] == differences("DeleteTopics", 6, silent, wordy)
    assert [("responses[orders].error_message", "some", "None")] == (
        differences("DeleteTopics", 6, wordy, silent)
    )


def test_missing_element_is_reported_once() -> None:
    kafka = deleted((TOPIC, ErrorCode.NONE, None), (f"{SCOPE}-other", ErrorCode.NONE, None))
    ours = deleted((TOPIC, ErrorCode.NONE, None))

    assert [("responses[other]", "there", "absent")] == differences("DeleteTopics", 6, kafka, ours)


def test_topics_of_other_scenarios_are_ignored() -> None:
    kafka = deleted((TOPIC, ErrorCode.NONE, None), ("s0007v01-theirs", ErrorCode.NONE, None))
    ours = deleted((TOPIC, ErrorCode.NONE, None))

    assert [] == differences("DeleteTopics", 6, kafka, ours)


def test_missing_response_is_reported_with_the_error_of_the_other_broker() -> None:
    ours = OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID, topics=[])

    assert [("(answer)", "the connection is closed", "an answer with INVALID_GROUP_ID")] == (
        differences("OffsetDelete", 0, CLOSED, ours)
    )


def test_shorter_conversation_is_a_difference() -> None:
    kafka = talk(KAFKA, ("ListOffsets", 7, listed(5)), ("ListOffsets", 7, listed(6)))

    (found,) = compare("x", 0, kafka, talk(MEMORY, ("ListOffsets", 7, listed(5))))

    assert ("(conversation)", "2 answers", "1 answers") == (found.field, found.kafka, found.korvet)


def test_offsets_under_timestamp_mapping_are_compared_by_their_records() -> None:
    def ours(offset: int) -> Talk:
        told = talk(RECORDS, ("ListOffsets", 7, listed(offset)), dense=False)
        told.offsets[TOPIC, 0] = [1000, 1001, 5000]
        return told

    def kafka(offset: int) -> Talk:
        return talk(KAFKA, ("ListOffsets", 7, listed(offset)))

    assert [] == compare("x", 7, kafka(0), ours(1000))
    assert [] == compare("x", 7, kafka(2), ours(5000))
    assert [] == compare("x", 7, kafka(3), ours(5001))
    assert [] == compare("x", 7, kafka(0), ours(0))
    assert [("1", "0")] == [(one.kafka, one.korvet) for one in compare("x", 7, kafka(1), ours(0))]
    assert [("0", "900")] == [(one.kafka, one.korvet) for one in compare("x", 7, kafka(0), ours(900))]
    assert [("2", "1")] == [(one.kafka, one.korvet) for one in compare("x", 7, kafka(2), ours(1001))]


def test_record_layout_is_compared_record_by_record() -> None:
    whole = build_batch([(0, 5, None, b"a", ()), (1, 6, None, b"b", ())])
    first, second = (
        build_batch([(0, 5, None, b"a", ())]),
        build_batch([(0, 6, None, b"b", ())], base_offset=1),
    )
    kafka = talk(KAFKA, ("Fetch", 12, fetched(whole)))

    assert [] == compare(
        "x", 12, kafka, talk(RECORDS, ("Fetch", 12, fetched(first, second)), keeps_batches=False)
    )
    assert [] != compare("x", 12, kafka, talk(BATCHES, ("Fetch", 12, fetched(first, second))))


def test_missing_records_are_reported_once() -> None:
    whole = build_batch([(0, 5, None, b"a", ()), (1, 6, None, b"b", ())])

    found = differences("Fetch", 12, fetched(whole), fetched(build_batch([(0, 5, None, b"a", ())])))

    assert [
        (
            "responses[orders].partitions[0].records.(records)",
            "2 from offset 0 to offset 1",
            "1 from offset 0 to offset 0",
        )
    ] == found


def test_equal_differences_of_versions_fields_and_brokers_become_one_row() -> None:
    found = [
        Found("x", "first", "Fetch", version, field, broker, "1", "2")
        for version in (4, 5, 7)
        for field in ("b", "a")
        for broker in OURS
    ]

    assert [Difference("x", "first", "Fetch", (4, 5, 7), ("a", "b"), OURS, "1", "2")] == together(found)
