"""AddPartitionsToTxn: add partitions to a transaction, before a producer of transaction.version 1 appends to them.

v4 and above are for brokers: several transactions in one request, and verification only.
"""

from __future__ import annotations

from korvet.protocol.schema import array, boolean, int16, int32, int64, message, string, struct


@struct
class AddPartitionsToTxnTopic:
    name: str = string()
    partitions: list[int] = array(int32)


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = string(versions="4+")
    producer_id: int = int64(versions="4+")
    producer_epoch: int = int16(versions="4+")
    verify_only: bool = boolean(versions="4+", default=False)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, versions="4+")


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, versions="4+", factory=list
    )
    v3_and_below_transactional_id: str = string(versions="0-3", default="")
    v3_and_below_producer_id: int = int64(versions="0-3", default=0)
    v3_and_below_producer_epoch: int = int16(versions="0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, versions="0-3", factory=list
    )


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = int32()
    partition_error_code: int = int16(default=0)


@struct
class AddPartitionsToTxnTopicResult:
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = string(versions="4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, versions="4+")


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(versions="4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, versions="4+", factory=list
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="0-3", factory=list
    )
