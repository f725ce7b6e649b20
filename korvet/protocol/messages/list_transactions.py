"""ListTransactions: the transactional ids of a coordinator, by state, producer id, duration (v1) and name (v2)."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, int32, int64, message, string, struct


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: list[str] = array(string, factory=list)
    producer_id_filters: list[int] = array(int64, factory=list)
    duration_filter: int = int64(versions="1+", default=-1)
    transactional_id_pattern: str | None = string(versions="2+", nullable="2+", default=None)


@struct
class TransactionState:
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    unknown_state_filters: list[str] = array(string, factory=list)
    transaction_states: list[TransactionState] = array(TransactionState, factory=list)
