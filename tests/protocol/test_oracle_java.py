"""Compare our bytes with some that Apache Kafka's own code wrote.

The Java classes (org.apache.kafka.common.message) of kafka-clients-4.3.1.jar wrote the expected bytes, those of 4.4.0
wrote those of ApiVersions v5, DeleteGroups v3, OffsetCommit and OffsetFetch v10, TxnOffsetCommit v6, Produce v13 and of
the messages of consumer and share groups, from the same values. The messages are those with the most error-prone
features: tags inside tags, nulls beside empty lists, ids, lengths of two bytes.

With 4.3.1, every version of every message except Produce v0 to v2, which Kafka 4 dropped, was compared with Java in the
same way, filled at random as in test_oracle.py; all 1,206 were equal. The specifications in kafka-clients-4.4.0.jar
describe the same fields as all of our 80 declarations. 4.4.0 wrote the same bytes as korvet for every version of the
messages of share groups, filled at random (240 messages).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from korvet.protocol.codec import decode
from korvet.protocol.messages import (
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_topics,
    delete_groups,
    describe_share_group_offsets,
    fetch,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
    txn_offset_commit,
)
from tests.protocol.samples import encoded

TOPIC_ID = UUID("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")

GOLDEN: list[tuple[Any, int, str]] = [
    (
        fetch.FetchRequest(
            cluster_id="korvet",
            replica_state=fetch.ReplicaState(replica_id=7, replica_epoch=8),
            max_wait_ms=500,
            min_bytes=1,
            topics=[
                fetch.FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        fetch.FetchPartition(
                            partition=3,
                            fetch_offset=2**40,
                            partition_max_bytes=1048576,
                            replica_directory_id=TOPIC_ID,
                        ),
                        fetch.FetchPartition(partition=4, fetch_offset=0, partition_max_bytes=1),
                    ],
                )
            ],
            forgotten_topics_data=[fetch.ForgottenTopic(topic_id=TOPIC_ID, partitions=[1, -1])],
            rack_id="r",
        ),
        17,
        (
            "000001f4000000017fffffff0000000000ffffffff020a1b2c3d4e5f60718293a4b5c6d7e8f90300000003ffffffff00"
            "00010000000000ffffffffffffffffffffffff001000000100100a1b2c3d4e5f60718293a4b5c6d7e8f900000004ffff"
            "ffff0000000000000000ffffffffffffffffffffffff000000010000020a1b2c3d4e5f60718293a4b5c6d7e8f9030000"
            "0001ffffffff000272020007076b6f72766574010d00000007000000000000000800"
        ),
    ),
    (
        fetch.FetchResponse(
            responses=[
                fetch.FetchableTopicResponse(
                    topic="t" * 127,
                    partitions=[
                        fetch.PartitionData(
                            partition_index=0,
                            high_watermark=9,
                            diverging_epoch=fetch.EpochEndOffset(epoch=1, end_offset=2),
                            current_leader=fetch.LeaderIdAndEpoch(leader_id=1),
                            snapshot_id=fetch.SnapshotId(end_offset=5),
                            aborted_transactions=[fetch.AbortedTransaction(producer_id=4, first_offset=5)],
                            records=None,
                        ),
                        fetch.PartitionData(
                            partition_index=1, high_watermark=0, aborted_transactions=None, records=None
                        ),
                    ],
                )
            ],
        ),
        12,
        "00000000000000000000028001"
        + "74" * 127
        + "030000000000000000000000000009ffffffffffffffffffffffffffffffff0200000000000000040000000000000005"
        "00ffffffff0003000d00000001000000000000000200010900000001ffffffff00020d0000000000000005ffffffff00"
        "0000000100000000000000000000ffffffffffffffffffffffffffffffff00ffffffff00000000",
    ),
    (
        produce.ProduceResponse(
            responses=[
                produce.TopicProduceResponse(
                    name="orders",
                    partition_responses=[
                        produce.PartitionProduceResponse(
                            index=0,
                            error_code=87,
                            base_offset=-1,
                            record_errors=[
                                produce.BatchIndexAndErrorMessage(batch_index=2),
                                produce.BatchIndexAndErrorMessage(
                                    batch_index=3, batch_index_error_message="no key"
                                ),
                            ],
                            error_message="",
                            current_leader=produce.LeaderIdAndEpoch(leader_id=1, leader_epoch=2),
                        )
                    ],
                )
            ],
            node_endpoints=[produce.NodeEndpoint(node_id=1, host="::1", port=9092)],
        ),
        11,
        (
            "02076f726465727302000000000057ffffffffffffffffffffffffffffffffffffffffffffffff030000000200000000"
            "0003076e6f206b65790001010009000000010000000200000000000001000f0200000001043a3a31000023840000"
        ),
    ),
    (
        metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
            cluster_id="c",
            controller_id=1,
            topics=[
                metadata.MetadataResponseTopic(
                    name=None,
                    topic_id=TOPIC_ID,
                    is_internal=True,
                    partitions=[
                        metadata.MetadataResponsePartition(
                            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[]
                        )
                    ],
                )
            ],
        ),
        12,
        (
            "0000000002000000010a6c6f63616c686f7374000023840000026300000001020000000a1b2c3d4e5f60718293a4b5c6"
            "d7e8f9010200000000000000000001ffffffff0200000001010100800000000000"
        ),
    ),
    (
        api_versions.ApiVersionsResponse(
            api_keys=[api_versions.ApiVersion(api_key=18, min_version=0, max_version=4)],
            supported_features=[
                api_versions.SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2)
            ],
            finalized_features_epoch=5,
            finalized_features=[
                api_versions.FinalizedFeatureKey(
                    name="transaction.version", max_version_level=2, min_version_level=2
                )
            ],
            zk_migration_ready=True,
        ),
        4,
        (
            "000002001200000004000000000004001a02147472616e73616374696f6e2e76657273696f6e00000002000108000000"
            "0000000005021a02147472616e73616374696f6e2e76657273696f6e0002000200030101"
        ),
    ),
    (
        api_versions.ApiVersionsRequest(
            client_software_name="käfer", client_software_version="1.0", cluster_id="c", node_id=7
        ),
        5,
        "076bc3a466657204312e3002630000000700",
    ),
    (
        api_versions.ApiVersionsRequest(client_software_name="k", client_software_version="1"),
        5,
        "026b023100ffffffff00",
    ),
    (
        api_versions.ApiVersionsResponse(error_code=129, api_keys=[], finalized_features_epoch=5),
        5,
        "008101000000000101080000000000000005",
    ),
    (
        delete_groups.DeleteGroupsRequest(groups_names=["g", ""]),
        3,
        "0302670100",
    ),
    (
        delete_groups.DeleteGroupsResponse(
            throttle_time_ms=2,
            results=[
                delete_groups.DeletableGroupResult(group_id="g"),
                delete_groups.DeletableGroupResult(group_id="h", error_code=68, error_message="ü"),
            ],
        ),
        3,
        "00000002030267000000000268004403c3bc0000",
    ),
    (
        create_topics.CreateTopicsResponse(
            topics=[
                create_topics.CreatableTopicResult(
                    name="a",
                    topic_id=TOPIC_ID,
                    error_message=None,
                    topic_config_error_code=29,
                    num_partitions=3,
                    replication_factor=1,
                    configs=None,
                ),
                create_topics.CreatableTopicResult(name="b", error_code=17, error_message="ü" * 64),
            ]
        ),
        7,
        "000000000302610a1b2c3d4e5f60718293a4b5c6d7e8f900000000000003000100010002001d02620000000000000000"
        "000000000000000000118101" + "c3bc" * 64 + "ffffffffffff010000",
    ),
    (
        offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(group_id="all", topics=None),
                offset_fetch.OffsetFetchRequestGroup(
                    group_id="some",
                    member_id="",
                    member_epoch=0,
                    topics=[offset_fetch.OffsetFetchRequestTopics(name="t", partition_indexes=[0, -1])],
                ),
            ],
            require_stable=True,
        ),
        9,
        "0304616c6c00ffffffff000005736f6d6501000000000202740300000000ffffffff00000100",
    ),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=7,
            instance_id="i",
            rack_id="r",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t", "u"],
            server_assignor="uniform",
            topic_partitions=[
                consumer_group_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, -1])
            ],
        ),
        0,
        (
            "0267026d0000000702690272000003e8030274027508756e69666f726d020a1b2c3d4e5f60718293a4b5c6d7e8f90300"
            "000000ffffffff0000"
        ),
    ),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=7,
            instance_id="i",
            rack_id="r",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t", "u"],
            subscribed_topic_regex="t.*",
            server_assignor="uniform",
            topic_partitions=[
                consumer_group_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, -1])
            ],
        ),
        1,
        (
            "0267026d0000000702690272000003e8030274027504742e2a08756e69666f726d020a1b2c3d4e5f60718293a4b5c6d7"
            "e8f90300000000ffffffff0000"
        ),
    ),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(group_id="g", member_id="", member_epoch=-2),
        1,
        "026701fffffffe0000ffffffff0000000000",
    ),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(
            throttle_time_ms=1,
            error_code=110,
            error_message="fenced",
            member_id="m",
            member_epoch=8,
            heartbeat_interval_ms=5000,
            assignment=consumer_group_heartbeat.Assignment(
                topic_partitions=[
                    consumer_group_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])
                ]
            ),
        ),
        0,
        (
            "00000001006e0766656e636564026d000000080000138801020a1b2c3d4e5f60718293a4b5c6d7e8f903000000000000"
            "0001000000"
        ),
    ),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(
            throttle_time_ms=1,
            error_code=110,
            error_message="fenced",
            member_id="m",
            member_epoch=8,
            heartbeat_interval_ms=5000,
            assignment=consumer_group_heartbeat.Assignment(
                topic_partitions=[
                    consumer_group_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])
                ]
            ),
        ),
        1,
        (
            "00000001006e0766656e636564026d000000080000138801020a1b2c3d4e5f60718293a4b5c6d7e8f903000000000000"
            "0001000000"
        ),
    ),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(),
        1,
        "00000000000000000000000000000000ff00",
    ),
    (
        consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=["g", ""], include_authorized_operations=True
        ),
        1,
        "030267010100",
    ),
    (
        consumer_group_describe.ConsumerGroupDescribeResponse(
            throttle_time_ms=1,
            groups=[
                consumer_group_describe.DescribedGroup(
                    group_id="g",
                    group_state="Stable",
                    group_epoch=3,
                    assignment_epoch=2,
                    assignor_name="range",
                    authorized_operations=7,
                    members=[
                        consumer_group_describe.Member(
                            member_id="m",
                            instance_id="i",
                            member_epoch=2,
                            client_id="c",
                            client_host="/h",
                            subscribed_topic_names=["t"],
                            subscribed_topic_regex="t.*",
                            assignment=consumer_group_describe.Assignment(
                                topic_partitions=[
                                    consumer_group_describe.TopicPartitions(
                                        topic_id=TOPIC_ID, topic_name="t", partitions=[2]
                                    )
                                ]
                            ),
                            target_assignment=consumer_group_describe.Assignment(topic_partitions=[]),
                        )
                    ],
                )
            ],
        ),
        0,
        (
            "0000000102000000026707537461626c6500000003000000020672616e676502026d026900000000020263032f680202"
            "7404742e2a020a1b2c3d4e5f60718293a4b5c6d7e8f9027402000000020000010000000000070000"
        ),
    ),
    (
        consumer_group_describe.ConsumerGroupDescribeResponse(
            throttle_time_ms=1,
            groups=[
                consumer_group_describe.DescribedGroup(
                    group_id="g",
                    group_state="Stable",
                    group_epoch=3,
                    assignment_epoch=2,
                    assignor_name="range",
                    authorized_operations=7,
                    members=[
                        consumer_group_describe.Member(
                            member_id="m",
                            instance_id="i",
                            member_epoch=2,
                            client_id="c",
                            client_host="/h",
                            subscribed_topic_names=["t"],
                            subscribed_topic_regex="t.*",
                            assignment=consumer_group_describe.Assignment(
                                topic_partitions=[
                                    consumer_group_describe.TopicPartitions(
                                        topic_id=TOPIC_ID, topic_name="t", partitions=[2]
                                    )
                                ]
                            ),
                            target_assignment=consumer_group_describe.Assignment(topic_partitions=[]),
                            member_type=consumer_group_describe.CONSUMER_MEMBER,
                        )
                    ],
                )
            ],
        ),
        1,
        (
            "0000000102000000026707537461626c6500000003000000020672616e676502026d026900000000020263032f680202"
            "7404742e2a020a1b2c3d4e5f60718293a4b5c6d7e8f902740200000002000001000100000000070000"
        ),
    ),
    (
        offset_commit.OffsetCommitRequest(
            group_id="g",
            member_id="m",
            generation_id_or_member_epoch=3,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=1, committed_offset=5, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        10,
        ("026700000003026d00020a1b2c3d4e5f60718293a4b5c6d7e8f902000000010000000000000005ffffffff00000000"),
    ),
    (
        txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=7,
            producer_epoch=1,
            generation_id=3,
            member_id="m",
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        txn_offset_commit.TxnOffsetCommitRequestPartition(
                            partition_index=1, committed_offset=5, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        6,
        (
            "027802670000000000000007000100000003026d00020a1b2c3d4e5f60718293a4b5c6d7e8f902000000010000000000"
            "000005ffffffff00000000"
        ),
    ),
    (
        txn_offset_commit.TxnOffsetCommitResponse(
            topics=[
                txn_offset_commit.TxnOffsetCommitResponseTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        txn_offset_commit.TxnOffsetCommitResponsePartition(partition_index=1, error_code=100)
                    ],
                )
            ],
        ),
        6,
        "00000000020a1b2c3d4e5f60718293a4b5c6d7e8f902000000010064000000",
    ),
    (
        produce.ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    topic_id=TOPIC_ID, partition_data=[produce.PartitionProduceData(index=3, records=None)]
                )
            ],
        ),
        13,
        "00ffff000003e8020a1b2c3d4e5f60718293a4b5c6d7e8f9020000000300000000",
    ),
    (
        produce.ProduceResponse(
            responses=[
                produce.TopicProduceResponse(
                    topic_id=TOPIC_ID,
                    partition_responses=[
                        produce.PartitionProduceResponse(index=3, error_code=100, base_offset=-1)
                    ],
                )
            ]
        ),
        13,
        (
            "020a1b2c3d4e5f60718293a4b5c6d7e8f902000000030064ffffffffffffffffffffffffffffffffffffffffffffffff"
            "010000000000000000"
        ),
    ),
    (
        offset_fetch.OffsetFetchResponse(
            groups=[
                offset_fetch.OffsetFetchResponseGroup(
                    group_id="g",
                    topics=[
                        offset_fetch.OffsetFetchResponseTopics(
                            topic_id=TOPIC_ID,
                            partitions=[
                                offset_fetch.OffsetFetchResponsePartitions(
                                    partition_index=1, committed_offset=5, metadata="x"
                                )
                            ],
                        )
                    ],
                )
            ]
        ),
        10,
        (
            "00000000020267020a1b2c3d4e5f60718293a4b5c6d7e8f902000000010000000000000005ffffffff02780000000000"
            "000000"
        ),
    ),
    (
        share_group_heartbeat.ShareGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=7, rack_id="r", subscribed_topic_names=["t"]
        ),
        1,
        ("0267026d00000007027202027400"),
    ),
    (
        share_group_heartbeat.ShareGroupHeartbeatResponse(
            member_id="m",
            member_epoch=8,
            heartbeat_interval_ms=5000,
            assignment=share_group_heartbeat.Assignment(
                topic_partitions=[share_group_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])]
            ),
        ),
        1,
        ("00000000000000026d000000080000138801020a1b2c3d4e5f60718293a4b5c6d7e8f9030000000000000001000000"),
    ),
    (
        share_fetch.ShareFetchRequest(
            group_id="g",
            member_id="m",
            share_session_epoch=3,
            max_wait_ms=500,
            min_bytes=1,
            max_records=500,
            batch_size=100,
            share_acquire_mode=share_fetch.RECORD_LIMIT,
            is_renew_ack=True,
            topics=[
                share_fetch.FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        share_fetch.FetchPartition(
                            partition_index=1,
                            acknowledgement_batches=[
                                share_fetch.AcknowledgementBatch(
                                    first_offset=5, last_offset=7, acknowledge_types=[1, 0, 4]
                                )
                            ],
                        )
                    ],
                )
            ],
            forgotten_topics_data=[share_fetch.ForgottenTopic(topic_id=TOPIC_ID, partitions=[2])],
        ),
        2,
        (
            "0267026d00000003000001f4000000017fffffff000001f4000000640101020a1b2c3d4e5f60718293a4b5c6d7"
            "e8f90200000001020000000000000005000000000000000704010004000000020a1b2c3d4e5f60718293a4b5c6"
            "d7e8f902000000020000"
        ),
    ),
    (
        share_fetch.ShareFetchResponse(
            acquisition_lock_timeout_ms=30000,
            responses=[
                share_fetch.ShareFetchableTopicResponse(
                    topic_id=TOPIC_ID,
                    partitions=[
                        share_fetch.PartitionData(
                            partition_index=1,
                            acknowledge_error_code=121,
                            acknowledge_error_message="x",
                            current_leader=share_fetch.LeaderIdAndEpoch(leader_id=1, leader_epoch=2),
                            records=(b"records",),
                            acquired_records=[
                                share_fetch.AcquiredRecords(first_offset=5, last_offset=7, delivery_count=2)
                            ],
                        )
                    ],
                )
            ],
            node_endpoints=[share_fetch.NodeEndpoint(node_id=1, host="h", port=9092)],
        ),
        1,
        (
            "0000000000000000007530020a1b2c3d4e5f60718293a4b5c6d7e8f90200000001000000007902780000000100"
            "00000200087265636f726473020000000000000005000000000000000700020000000200000001026800002384"
            "000000"
        ),
    ),
    (
        share_acknowledge.ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=30000,
            responses=[
                share_acknowledge.ShareAcknowledgeTopicResponse(
                    topic_id=TOPIC_ID,
                    partitions=[
                        share_acknowledge.PartitionData(
                            partition_index=1, error_code=121, current_leader=share_fetch.LeaderIdAndEpoch()
                        )
                    ],
                )
            ],
        ),
        2,
        (
            "0000000000000000007530020a1b2c3d4e5f60718293a4b5c6d7e8f90200000001007900000000000000000000"
            "00000100"
        ),
    ),
    (
        describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            groups=[
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
            ]
        ),
        1,
        ("020267000000"),
    ),
]


@pytest.mark.parametrize(
    "message, version, expected",
    GOLDEN,
    ids=[f"{type(message).__name__}-v{version}-{expected[:12]}" for message, version, expected in GOLDEN],
)
def test_encoded_messages_equal_those_of_apache_kafka(message: Any, version: int, expected: str) -> None:
    assert expected == encoded(message, version).hex()
    assert (message, len(expected) // 2) == decode(
        type(message), version, memoryview(bytes.fromhex(expected))
    )
