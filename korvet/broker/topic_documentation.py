"""A sentence for each topic setting, which DescribeConfigs returns and `korvet configs list` shows."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.broker.topics import TopicSetting

HELP: Mapping[str, str] = {
    "cleanup.policy": "What becomes of old records: delete drops them by retention.ms and retention.bytes,"
    " compact keeps the last one of each key, compact,delete does both.",
    "compression.gzip.level": "Level of compression where compression.type is gzip; -1 is gzip's own choice.",
    "compression.lz4.level": "Level of compression where compression.type is lz4.",
    "compression.type": "Codec of batches that the broker builds itself, as it does in the record layout;"
    " producer leaves these uncompressed, and all others as they came.",
    "compression.zstd.level": "Level of compression where compression.type is zstd.",
    "delete.retention.ms": "How long a record without value, which marks its key as deleted, stays in a compacted"
    " topic, from when compaction first met it.",
    "file.delete.delay.ms": "How long a deleted file stays on the disk.",
    "flush.messages": "Number of records after which the log is forced to the disk.",
    "flush.ms": "Time after which the log is forced to the disk.",
    "follower.replication.throttled.replicas": "Replicas whose replication is throttled at the follower.",
    "index.interval.bytes": "How many bytes lie between two entries of the offset index.",
    "leader.replication.throttled.replicas": "Replicas whose replication is throttled at the leader.",
    "local.retention.bytes": "How much of an archived partition is kept here; -2 is retention.bytes.",
    "local.retention.ms": "How long records that are archived are kept here; -2 is retention.ms.",
    "max.compaction.lag.ms": "How old a record may become before its partition is compacted, however little of that is"
    " new.",
    "max.message.bytes": "Largest record batch that is taken, as the producer compressed it.",
    "message.downconversion.enable": "Whether batches are converted for consumers from before 2017.",
    "message.format.version": "Format of records; it is always the one of Kafka 3.0.",
    "message.timestamp.after.max.ms": "How far a producer's timestamp may lie in the future.",
    "message.timestamp.before.max.ms": "How far a producer's timestamp may lie in the past.",
    "message.timestamp.difference.max.ms": "How far a producer's timestamp may lie in the past or the future;"
    " the other two settings are clearer.",
    "message.timestamp.type": "Whose time a record bears: the producer's (CreateTime), or that of its append"
    " (LogAppendTime).",
    "min.cleanable.dirty.ratio": "Share of a partition's bytes that may be new since it was compacted, before it is"
    " compacted again.",
    "min.compaction.lag.ms": "How old a record has to be before it, and what lies behind it, is compacted.",
    "min.insync.replicas": "Copies, the one written to included, that acks=all waits for.",
    "offset.mapping": "How offsets are counted: after the clock (timestamp), or 0, 1, 2, … (dense)."
    " Fixed when the topic is created.",
    "offset.sequence.bits": "Bits of a timestamp offset that count within a millisecond."
    " Fixed when the topic is created.",
    "preallocate": "Whether files are created with their full size.",
    "remote.log.copy.disable": "Whether an archived topic stops being archived.",
    "remote.log.delete.on.disable": "Whether the archive is deleted when archiving is switched off.",
    "remote.storage.enable": "Whether records are archived.",
    "retention.bytes": "How much a partition keeps before its oldest records are dropped; -1 without limit.",
    "retention.ms": "How long records are kept before they are dropped; -1 for ever.",
    "segment.bytes": "Largest file of a log.",
    "segment.index.bytes": "Largest index of a file.",
    "segment.jitter.ms": "How much earlier than segment.ms a new file may be begun.",
    "segment.ms": "Time after which a new file is begun.",
    "storage.layout": "How records are kept in Redis: a stream entry for each record, or for each batch."
    " Fixed when the topic is created.",
    "unclean.leader.election.enable": "Whether a replica that lacks records may become leader.",
}


def documentation_of(setting: TopicSetting) -> str:
    """Return a setting's documentation, with a note if the setting has no effect in korvet."""
    if setting.enforced:
        return HELP[setting.name]
    return f"{HELP[setting.name]} Stored and shown, and without effect here."
