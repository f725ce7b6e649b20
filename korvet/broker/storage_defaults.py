"""The broker's settings that storage applies to topics."""

from __future__ import annotations

from korvet.broker.topics import KAFKA_DEFAULTS
from korvet.config import Config
from korvet.config.dynamic import OF_TOPICS
from korvet.storage.compaction import BYTES_PER_KEY
from korvet.storage.interface import OffsetMapping, StorageDefaults, TopicConfig
from korvet.storage.topic_config import LAYOUT, SEQUENCE_BITS, TIMESTAMP_TYPES, topic_config


def storage_defaults(config: Config) -> StorageDefaults:
    """Return the settings, with their present dynamic values."""
    of_topics = TopicConfig(
        mapping=OffsetMapping(config.default_offset_mapping),
        backend_settings={LAYOUT: config.storage_layout, SEQUENCE_BITS: str(config.offset_sequence_bits)},
        timestamp_type=TIMESTAMP_TYPES[config.log_message_timestamp_type],
        compression_type=config.compression_type,
        retention_ms=config.retention_ms,
        retention_bytes=config.log_retention_bytes,
        min_insync_replicas=config.min_insync_replicas,
    )
    dynamic = {**config.of_cluster, **config.of_broker}
    others = {
        topic: dynamic[name]
        for topic, name in KAFKA_DEFAULTS.items()
        if name in OF_TOPICS and name in dynamic
    }
    return StorageDefaults(
        topic_config=topic_config(others, of_topics),
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        record_max_headers=config.record_max_headers,
        record_max_batch_records=config.record_max_batch_records,
        compaction_max_keys=max(1, config.log_cleaner_dedupe_buffer_size // BYTES_PER_KEY),
    )
