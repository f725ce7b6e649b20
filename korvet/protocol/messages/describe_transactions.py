"""DescribeTransactions: states of transactional ids, and the partitions of their transactions."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, int32, int64, message, string, struct


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    transactional_ids: list[str] = array(string)


@struct
class TopicData:
    topic: str = string()
    partitions: list[int] = array(int32)


@struct
class TransactionState:
    error_code: int = int16(default=0)
    transactional_id: str = string()
    transaction_state: str = string(default="")
    transaction_timeout_ms: int = int32(default=0)
    transaction_start_time_ms: int = int64(default=0)
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    topics: list[TopicData] = array(TopicData, factory=list)


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int = int32(default=0)
    transaction_states: list[TransactionState] = array(TransactionState, encodable=True)
