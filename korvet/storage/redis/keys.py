"""Names of keys and of their fields: the keyspace that `docs/storage.md` documents for Redis users.

    korvet:orders:0                 stream: the records of partition 0 of topic orders
    {korvet:orders:0}:$state        hash: the bounds of its log, and the state of its scripts
    {korvet:orders:0}:$producers    hash: idempotent producers
    {korvet:orders:0}:$transactions hash: the last transaction of each producer
    {korvet:orders:0}:$open         stream: the first record of each open transaction
    {korvet:orders:0}:$aborted      stream: the marker of each aborted transaction
    {korvet:orders:0}:$shares       hash: share groups, and the last calls of their members
    {korvet:orders:0}:$index        stream: about every 64 kB, the largest timestamp since the entry before
    {korvet:orders:0}:$summary      stream: the same about every 16 MB
    {korvet:orders:0}:$compacted    stream: its successor while it is compacted; with .state, .index,
                                    .summary, .old, .groups

    korvet:$format                  string: the version of the storage format
    korvet:$replicas                string: empty; written before a WAIT
    korvet:$epochs                  hash: the newest leader epoch; run_id of a server process -> its epoch
    korvet:$topics                  hash: topic name -> JSON
    korvet:$changes                 stream: notifies the other brokers of changes in $topics, and of documents
    korvet:$group:billing           hash: a group's committed offsets
    korvet:$groups                  set: the ids of groups that committed
    korvet:$document:users:alice    hash: a small document (version, value)
    korvet:$documents:users         set: the keys of all documents of that kind

A partition's keys have the stream's whole name as hash tag, so that they share its slot in a cluster and one
script may access them all. No topic's name can contain a `$`. A group's id and a document's key may contain any
character, and therefore end the name.

The ID of an entry in the two index streams is that of the last record it covers, so both are searched and trimmed by
the same IDs as the records. Their fields: `max_timestamp`; `appended`, the time of the last append they cover (ms);
`bytes` and `entries`, counted from the creation of the partition up to and including that record.
"""

from __future__ import annotations

from attrs import field, frozen

from korvet.storage.interface import TopicPartition

FORMAT = b"1"

# --- Fields of $state that are read outside of the scripts ------------------------------------------------
#
# Values of two numbers are entry IDs.

STATE_TOPIC = b"topic"  # the topic's id; every script refuses another id
STATE_NEXT = b"next"  # the lowest ID the next record can get
STATE_START = b"start"  # retention and DeleteRecords removed everything below
STATE_EARLIEST = b"earliest"  # where the log began, or begins since other clients trimmed it
STATE_LENGTH = b"length"  # expected XLEN; if XLEN differs, another client added or deleted entries
STATE_BYTES = b"bytes"  # bytes of all entries ever added: field names and values
STATE_TRIMMED = b"trimmed"  # the part of these bytes that was removed
STATE_LARGEST = b"largest"  # bytes of the largest entry ever added
STATE_SKIPPED = b"skipped"  # number of entries ever added whose IDs have no offset
STATE_EPOCHS = b"epochs"  # leader epochs, each with its first ID: "0:0-0 1:1763666000123-7"
STATE_SERVER = b"server"  # the `run_id` of the server process in which the leader epoch began
STATE_VISIBLE = b"visible"  # the high watermark if min.insync.replicas is above 1
STATE_VISIBLE_STABLE = (
    b"visible.stable"  # `unstable` at the moment at which replicas confirmed the high watermark
)
STATE_UNSTABLE = b"unstable"  # the first ID of the oldest open transaction, or ""
STATE_CLEANED = b"cleaned"  # ends and times of compactions (`korvet.storage.compaction.Cleaned`)
STATE_CLEANED_BYTES = b"cleaned.bytes"  # bytes up to the end of the compacted part, counted as `bytes` is
STATE_COMPACTION = b"compaction"  # the token of the running compaction, or of one whose broker died


@frozen
class PartitionKeys:
    """The keys of one partition. A broker keeps this object for every partition used, so it stores one name."""

    stream: bytes

    @property
    def state(self) -> bytes:
        return b"{%b}:$state" % self.stream

    @property
    def index(self) -> bytes:
        return b"{%b}:$index" % self.stream

    @property
    def summary(self) -> bytes:
        return b"{%b}:$summary" % self.stream

    @property
    def producers(self) -> bytes:
        return b"{%b}:$producers" % self.stream

    @property
    def transactions(self) -> bytes:
        return b"{%b}:$transactions" % self.stream

    @property
    def open(self) -> bytes:
        return b"{%b}:$open" % self.stream

    @property
    def aborted(self) -> bytes:
        return b"{%b}:$aborted" % self.stream

    @property
    def shares(self) -> bytes:
        return b"{%b}:$shares" % self.stream

    @property
    def log(self) -> tuple[bytes, ...]:
        """The keys that every partition script names, in the order of its KEYS."""
        tag = b"{%b}:$" % self.stream
        return self.stream, tag + b"state", tag + b"index", tag + b"summary", tag + b"producers"

    @property
    def all(self) -> tuple[bytes, ...]:
        """All keys, in the order of KEYS: of scripts that begin or end transactions, or remove the partition."""
        return *self.log, self.transactions, self.open, self.aborted

    @property
    def compaction(self) -> tuple[bytes, ...]:
        """The additional keys during compaction, in the order of the compaction scripts' KEYS."""
        parts = (b"", b".state", b".index", b".summary", b".old")
        return *(b"{%b}:$compacted%b" % (self.stream, part) for part in parts), self.moved_groups

    @property
    def moved_groups(self) -> bytes:
        """The last of them: the groups that commits have moved meanwhile."""
        return b"{%b}:$compacted.groups" % self.stream

    @property
    def followed(self) -> tuple[bytes, bytes]:
        """The additional keys when a Redis consumer group follows a commit: `moved_groups` and `shares`."""
        # Each commit makes these: a call for each of them would lengthen its way (tests/bench/test_calls.py).
        return b"{%b}:$compacted.groups" % self.stream, b"{%b}:$shares" % self.stream


@frozen
class Keyspace:
    """The names of all keys under one namespace, which must not contain braces."""

    namespace: str = "korvet"
    format: bytes = field(init=False)
    topics: bytes = field(init=False)
    changes: bytes = field(init=False)
    replicas: bytes = field(init=False)
    epochs: bytes = field(init=False)
    groups: bytes = field(init=False)

    def __attrs_post_init__(self) -> None:
        for name in ("format", "topics", "changes", "replicas", "epochs", "groups"):
            object.__setattr__(self, name, f"{self.namespace}:${name}".encode())

    def stream(self, tp: TopicPartition) -> bytes:
        """Return the key of a partition's stream."""
        return b"%b%d" % (self.stream_prefix(tp.topic), tp.partition)

    def stream_prefix(self, topic: str) -> bytes:
        """Return the prefix of the keys of a topic's streams."""
        return f"{self.namespace}:{topic}:".encode()

    def partition(self, tp: TopicPartition) -> PartitionKeys:
        """Return all keys of a partition."""
        return PartitionKeys(self.stream(tp))

    def group(self, group_id: str) -> bytes:
        """Return the key of a group's committed offsets."""
        return f"{self.namespace}:$group:{group_id}".encode()

    def document(self, kind: str, key: str) -> bytes:
        """Return the key of a small document."""
        return f"{self.namespace}:$document:{escaped(kind)}:{key}".encode()

    def documents(self, kind: str) -> bytes:
        """Return the key of the set that lists the documents of a kind."""
        return f"{self.namespace}:$documents:{escaped(kind)}".encode()


def escaped(kind: str) -> str:
    """Escape the colons of a kind, so that the next colon in the key's name ends it."""
    return kind.replace("%", "%25").replace(":", "%3A")
