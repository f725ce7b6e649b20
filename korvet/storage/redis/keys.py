"""Names of keys, and of the fields in them: the keyspace as `docs/storage.md` shows it to Redis users.

    korvet:orders:0                 stream: the records of partition 0 of topic orders
    {korvet:orders:0}:$state        hash: where its log begins and ends, and what its scripts remember
    {korvet:orders:0}:$producers    hash: idempotent producers
    {korvet:orders:0}:$index        stream: about every 64 kB, the largest timestamp since the entry before
    {korvet:orders:0}:$summary      stream: the same about every 16 MB
    {korvet:orders:0}:$compacted    stream: while it is compacted, the one to be; with .state, .index, .summary, .old

    korvet:$format                  string: the version of all this
    korvet:$topics                  hash: topic name -> JSON
    korvet:$changes                 stream: tells the other brokers that $topics has changed
    korvet:$group:billing           hash: what a group committed
    korvet:$groups                  set: the ids of groups that committed
    korvet:$document:users:alice    hash: a small document (version, value)
    korvet:$documents:users         set: the keys of all documents of that kind

A partition's keys carry the stream's whole name as hash tag, so that they share its slot in a cluster and one
script may touch them all. No topic's name can contain a `$`; a group's id and a document's key may contain
anything, and stand last.

Both index streams have entries whose ID is that of the last record they cover, which is why they can be searched
and trimmed by the same IDs as the records. Their fields: `max_timestamp`, `appended` (ms, the last append they cover),
and, counted from the partition's first day, `bytes` and `entries` up to and with that record.
"""

from __future__ import annotations

from attrs import field, frozen

from korvet.storage.interface import TopicPartition

FORMAT = b"1"

# --- Fields of $state, those that are read from outside the scripts ---------------------------------------
#
# Two-number fields are entry IDs.

STATE_TOPIC = b"topic"  # the topic's id; every script that is told another one refuses
STATE_CREATED = b"created"  # the topic's number in the order of creations
STATE_NEXT = b"next"  # the lowest ID the next record can get: the high watermark
STATE_START = b"start"  # retention and DeleteRecords removed everything below
STATE_EARLIEST = b"earliest"  # where the log began, or begins since other clients trimmed it
STATE_LENGTH = b"length"  # XLEN as it should be; where it is not, somebody else wrote or deleted
STATE_ENTRIES = b"entries"  # entries added from the first day on, as Redis 7 counts them (entries-added)
STATE_BYTES = b"bytes"  # bytes of these: field names and values
STATE_TRIMMED = b"trimmed"  # of these bytes, those that are gone
STATE_LARGEST = b"largest"  # bytes of the largest entry there ever was
STATE_SKIPPED = b"skipped"  # entries there ever were whose IDs have no offset
STATE_EPOCHS = b"epochs"  # leader epochs, each with the ID it begins at: "0:0-0 1:1763666000123-7"
STATE_CLEANED = b"cleaned"  # how far it is compacted, and since when (`korvet.storage.compaction.Cleaned`)
STATE_CLEANED_BYTES = b"cleaned.bytes"  # bytes up to there, counted as `bytes` is
STATE_COMPACTION = b"compaction"  # the token of the compaction that is under way, or was when its broker died
STATE_WRITER = b"w:"  # + writer id: the last call of that broker process, and how it was answered


@frozen
class PartitionKeys:
    """The keys of one partition."""

    stream: bytes
    state: bytes
    producers: bytes
    index: bytes
    summary: bytes
    #: In the order in which every partition script takes them.
    all: tuple[bytes, ...]
    #: What there is while the partition is compacted, in the order of the scripts for that.
    compaction: tuple[bytes, ...]


@frozen
class Keyspace:
    """All names under one namespace, which holds no braces."""

    namespace: str = "korvet"
    format: bytes = field(init=False)
    topics: bytes = field(init=False)
    changes: bytes = field(init=False)
    groups: bytes = field(init=False)

    def __attrs_post_init__(self) -> None:
        for name in ("format", "topics", "changes", "groups"):
            object.__setattr__(self, name, f"{self.namespace}:${name}".encode())

    def stream(self, tp: TopicPartition) -> bytes:
        """A partition's records."""
        return b"%b%d" % (self.stream_prefix(tp.topic), tp.partition)

    def stream_prefix(self, topic: str) -> bytes:
        """What the keys of a topic's streams begin with."""
        return f"{self.namespace}:{topic}:".encode()

    def partition(self, tp: TopicPartition) -> PartitionKeys:
        """All keys of a partition."""
        stream = self.stream(tp)
        names = (b"$state", b"$index", b"$summary", b"$producers")
        state, index, summary, producers = (b"{%b}:%b" % (stream, name) for name in names)
        keys = (stream, state, index, summary, producers)
        parts = (b"", b".state", b".index", b".summary", b".old")
        compaction = tuple(b"{%b}:$compacted%b" % (stream, part) for part in parts)
        return PartitionKeys(stream, state, producers, index, summary, keys, compaction)

    def group(self, group_id: str) -> bytes:
        """What a group committed."""
        return f"{self.namespace}:$group:{group_id}".encode()

    def document(self, kind: str, key: str) -> bytes:
        """A small document."""
        return f"{self.namespace}:$document:{escaped(kind)}:{key}".encode()

    def documents(self, kind: str) -> bytes:
        """The keys of all documents of a kind."""
        return f"{self.namespace}:$documents:{escaped(kind)}".encode()


def escaped(kind: str) -> str:
    """A kind without colons, so that the first one in a key's name ends it."""
    return kind.replace("%", "%25").replace(":", "%3A")
