"""DeleteTopics: by name (`topic_names` up to v5), or by name or id (`topics` from v6, KIP-516)."""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.schema import ZERO_UUID, array, int16, int32, message, string, struct, uuid


@struct
class DeleteTopicState:
    name: str | None = string(versions="6+", nullable="6+", default=None)
    topic_id: UUID = uuid(versions="6+", default=ZERO_UUID)


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+", factory=list)
    topic_names: list[str] = array(string, versions="0-5", factory=list, ignorable=True)
    timeout_ms: int = int32()


@struct
class DeletableTopicResult:
    name: str | None = string(nullable="6+")
    topic_id: UUID = uuid(versions="6+", default=ZERO_UUID, ignorable=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
