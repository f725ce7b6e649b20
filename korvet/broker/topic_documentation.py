"""A sentence for each topic setting, which DescribeConfigs returns and `korvet configs list` shows."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.broker.topics import TopicSetting

HELP: Mapping[str, str] = {
    "cleanup.policy": "How old records are removed: delete removes them by retention.ms and retention.bytes, compact"
    " keeps the last record of each key, compact,delete does both.",
    "compression.gzip.level": "Compression level if compression.type is gzip; -1 is gzip's default.",
    "compression.lz4.level": "Compression level if compression.type is lz4.",
    "compression.type": "Codec of batches that the broker builds itself, as it does in the record layout; producer"
    " leaves these uncompressed, and all others as they were sent.",
    "compression.zstd.level": "Compression level if compression.type is zstd.",
    "delete.retention.ms": "Time for which a tombstone (a record without a value) stays in a compacted topic after"
    " its first compaction.",
    "errors.deadletterqueue.group.enable": "Allow share groups to use the topic as their dead-letter queue.",
    "file.delete.delay.ms": "Time before a deleted file is removed from the file system.",
    "flush.messages": "Number of records after which the log is flushed to disk.",
    "flush.ms": "Time after which the log is flushed to disk.",
    "follower.replication.throttled.replicas": "Replicas whose replication is throttled at the follower.",
    "index.interval.bytes": "Bytes between two entries of the offset index.",
    "korvet.lake.decode": "Format of the values that korvet lake run decodes to a typed table; none only archives"
    " them.",
    "korvet.lake.enable": "Let korvet lake run keep a table of the topic.",
    "korvet.lake.iceberg.enable": "Let korvet lake run mirror the topic's tables to Iceberg.",
    "korvet.lake.lag.ms": "Longest time for which a record waits until korvet lake run commits it to the table.",
    "korvet.lake.on.error": "Treatment of values that korvet lake run cannot decode: write them to the table of bad"
    " rows (dlq), skip them, or stop.",
    "korvet.lake.retention.ms": "Time for which korvet lake run keeps records in the table; -1 is unlimited.",
    "leader.replication.throttled.replicas": "Replicas whose replication is throttled at the leader.",
    "local.retention.bytes": "Maximum size of the local part of an archived partition; -2 uses retention.bytes.",
    "local.retention.ms": "Time for which archived records are kept in the local log; -2 uses retention.ms.",
    "max.compaction.lag.ms": "Maximum age of a record before its partition is compacted, whatever the share of new"
    " records.",
    "max.message.bytes": "Maximum size of a record batch, as the producer compressed it.",
    "message.timestamp.after.max.ms": "Maximum distance of a producer's timestamp in the future.",
    "message.timestamp.before.max.ms": "Maximum distance of a producer's timestamp in the past.",
    "message.timestamp.type": "Source of a record's timestamp: its producer (CreateTime) or the time of its append"
    " (LogAppendTime).",
    "min.cleanable.dirty.ratio": "Minimum share of bytes appended since the last compaction from which a partition is"
    " compacted again.",
    "min.compaction.lag.ms": "Minimum age of a record before it and all later records are compacted.",
    "min.insync.replicas": "Number of copies that acks=all requires, the primary included.",
    "offset.mapping": "How offsets are assigned: by the clock (timestamp), or 0, 1, 2, … (dense)."
    " Fixed when the topic is created.",
    "offset.sequence.bits": "Bits of a timestamp offset that number the records of one millisecond."
    " Fixed when the topic is created.",
    "preallocate": "Create files with their full size.",
    "remote.copy.lag.bytes": "Bytes of newer records after which a file is archived; -1 uses local.retention.bytes.",
    "remote.copy.lag.ms": "Time after which a file is archived; -1 uses local.retention.ms.",
    "remote.log.copy.disable": "Stop archiving an archived topic.",
    "remote.log.delete.on.disable": "Delete the archive when archiving is disabled.",
    "remote.storage.enable": "Archive the topic's records.",
    "record.validation": "Checks of produced batches: full checks each record, which decompresses the batch; batch"
    " checks only the batch's header and checksum. The record layout in Redis always checks each record.",
    "retention.bytes": "Maximum size of a partition before its oldest records are removed; -1 is unlimited.",
    "retention.ms": "Time for which records are kept; -1 is unlimited.",
    "segment.bytes": "Maximum size of a file of the log.",
    "segment.index.bytes": "Maximum size of the index of a file.",
    "segment.jitter.ms": "Maximum random time subtracted from segment.ms.",
    "segment.ms": "Time after which a new file is started.",
    "storage.layout": "Layout of records in Redis: a stream entry for each record, or for each record batch."
    " Fixed when the topic is created.",
    "unclean.leader.election.enable": "Allow a replica that lacks records to become leader.",
}


def documentation_of(setting: TopicSetting) -> str:
    """Return a setting's documentation, with a note if the setting has no effect in korvet."""
    if setting.enforced:
        return HELP[setting.name]
    return f"{HELP[setting.name]} korvet stores and returns it, but it has no effect."
