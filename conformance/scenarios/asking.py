"""Requests that several families of scenarios use, in any version."""

from __future__ import annotations

from conformance.talk import Talk, newest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

#: The first version of Fetch that names topics by id.
FETCH_BY_ID = 13


def fetch(
    talk: Talk,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    version: int | None = None,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 1_000_000,
    partition_max_bytes: int = 1_000_000,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
) -> FetchRequest:
    """Return a request for one partition of a topic (by its short name), from record number `offset` on."""
    spoken = newest(FetchRequest) if version is None else version
    asked = FetchPartition(
        partition=partition,
        fetch_offset=talk.offset(topic, offset, partition) if offset >= 0 else offset,
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=current_leader_epoch,
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[fetch_topic(talk, topic, spoken, asked)],
    )


def fetch_topic(talk: Talk, topic: str, version: int, *partitions: FetchPartition) -> FetchTopic:
    """Return a topic, by its short name, in the form of that version of Fetch."""
    if version < FETCH_BY_ID:
        return FetchTopic(topic=talk.name(topic), partitions=list(partitions))
    return FetchTopic(topic_id=talk.topic_id(topic), partitions=list(partitions))
