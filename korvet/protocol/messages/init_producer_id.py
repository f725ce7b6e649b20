"""InitProducerId: a producer id and epoch for idempotent (KIP-98) and transactional producers."""

from __future__ import annotations

from korvet.protocol.schema import int16, int32, int64, message, string


@message(key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(versions="3+", default=-1)
    producer_epoch: int = int16(versions="3+", default=-1)


@message(key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int = int32(default=0, ignorable=True)
    error_code: int = int16(default=0)
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
