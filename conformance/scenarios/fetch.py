"""Fetch: offsets, limits, waits, and errors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from conformance.scenario import scenario
from conformance.scenarios.asking import FETCH_BY_ID, fetch, fetch_topic
from conformance.scenarios.produce import produce
from conformance.scenarios.records import batch
from conformance.talk import Talk
from korvet.protocol.compression import Codec
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

LEAST_VERSION_WITH_SESSIONS = 7
LEAST_VERSION_WITH_EPOCHS = 9


class Session:
    """A consumer's fetch session of the topic `orders`."""

    def __init__(self, talk: Talk, version: int) -> None:
        self.talk, self.version = talk, version
        self.session_id = self.epoch = 0
        self.topic = fetch_topic(talk, "orders", version)

    def ask(
        self,
        label: str,
        positions: Mapping[int, int],
        *,
        forget: Sequence[int] = (),
        epoch: int | None = None,
        version: int | None = None,
        max_bytes: int = 1_000_000,
    ) -> None:
        """Send the next request: numbers of records by partition, and partitions to forget."""
        topic, topic_id = self.topic.topic, self.topic.topic_id
        asked = [
            FetchPartition(
                partition=partition,
                fetch_offset=self.talk.offset("orders", number, partition) if number < 1000 else 2**62,
                partition_max_bytes=1_000_000,
            )
            for partition, number in positions.items()
        ]
        forgotten = [ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forget))]
        answer = self.talk.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=max_bytes,
                session_id=self.session_id,
                session_epoch=self.epoch if epoch is None else epoch,
                topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=asked)] if asked else [],
                forgotten_topics_data=forgotten if forget else [],
            ),
            self.version if version is None else version,
            label,
        )
        self.session_id = answer.session_id or self.session_id
        self.epoch += 1


def several(
    talk: Talk,
    version: int,
    *partitions: FetchPartition,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 1_000_000,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    """Return a request for some partitions of the topic `orders`."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[fetch_topic(talk, "orders", version, *partitions)],
    )


@scenario(FetchRequest)
def from_every_position(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch(b"0"), batch(b"1", b"2", b"3"), batch(b"4", codec=Codec.GZIP))
    for offset in range(7):
        talk.ask(fetch(talk, "orders", offset, version=version), version, f"record {offset}")
    talk.ask(fetch(talk, "orders", -1, version=version), version, "offset -1")
    talk.ask(fetch(talk, "orders", 1000, version=version), version, "far behind the end")


@scenario(FetchRequest)
def an_empty_partition(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.ask(fetch(talk, "orders", 0, version=version), version)


@scenario(FetchRequest)
def limits_on_bytes(talk: Talk, version: int) -> None:
    talk.topic("orders", partitions=2)
    each = batch(b"x" * 1000)
    talk.fill("orders", each, each, each)
    talk.fill("orders", each, each, partition=1)
    size = len(each)
    for label, limits in {
        "a batch is larger than the partition's limit": {"partition_max_bytes": 1},
        "a batch is larger than the answer's limit": {"max_bytes": 1},
        "no bytes at all": {"partition_max_bytes": 0},
        "one batch and a half": {"partition_max_bytes": size * 3 // 2},
        "just two batches": {"partition_max_bytes": size * 2},
        "less than two batches": {"partition_max_bytes": size * 2 - 1},
        "no limit": {"partition_max_bytes": 2**31 - 1, "max_bytes": 2**31 - 1},
        "a negative limit": {"partition_max_bytes": -1},
    }.items():
        talk.ask(fetch(talk, "orders", 0, version=version, **limits), version, label)
    both = [
        FetchPartition(
            partition=index, fetch_offset=talk.offset("orders", 0, index), partition_max_bytes=10_000
        )
        for index in (0, 1)
    ]
    talk.ask(several(talk, version, *both, max_bytes=1), version, "two partitions, one byte")
    talk.ask(several(talk, version, *both, max_bytes=size), version, "two partitions, one batch")
    talk.ask(several(talk, version, *both), version, "two partitions")


@scenario(FetchRequest)
def missing_partitions(talk: Talk, version: int) -> None:
    talk.topic("orders")
    for partition in (1, -1):
        asked = fetch(talk, "orders", 0, partition=partition, version=version)
        talk.ask(asked, version, f"partition {partition}")
    nobody = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    if version < FETCH_BY_ID:
        unknown = FetchTopic(topic=talk.name("nowhere"), partitions=[nobody])
        nameless = FetchTopic(topic="", partitions=[nobody])
    else:
        unknown = FetchTopic(topic_id=UUID(int=77), partitions=[nobody])
        nameless = FetchTopic(partitions=[nobody])
    talk.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[unknown]), version, "an unknown topic")
    talk.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[nameless]), version, "a topic of no name")
    talk.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), version, "nothing")
    empty = fetch_topic(talk, "orders", version)
    talk.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[empty]), version, "no partitions")


@scenario(FetchRequest, 12, 13)
def valid_and_invalid_partitions(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch())
    asked = [
        FetchPartition(partition=index, fetch_offset=talk.offset("orders", 0), partition_max_bytes=1000)
        for index in (0, 5)
    ]
    began = time.monotonic()
    talk.ask(several(talk, version, *asked, max_wait_ms=1000, min_bytes=10_000), version)
    talk.note("whether it waited", time.monotonic() - began > 0.9)


@scenario(FetchRequest)
def duplicate_partition(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch(b"0"), batch(b"1"))
    asked = [
        FetchPartition(partition=0, fetch_offset=talk.offset("orders", number), partition_max_bytes=1000)
        for number in (0, 1)
    ]
    talk.ask(several(talk, version, *asked), version)


@scenario(FetchRequest, LEAST_VERSION_WITH_EPOCHS)
def leader_epochs(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch())
    for epoch in (0, 1, 7, -2):
        asked = fetch(talk, "orders", 0, version=version, current_leader_epoch=epoch)
        talk.ask(asked, version, f"current leader epoch {epoch}")


@scenario(FetchRequest, 12)
def last_fetched_epochs(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch())
    for epoch in (0, 5):
        asked = FetchPartition(
            partition=0,
            fetch_offset=talk.offset("orders", 1),
            last_fetched_epoch=epoch,
            partition_max_bytes=1000,
        )
        talk.ask(several(talk, version, asked), version, f"last fetched epoch {epoch}")


@scenario(FetchRequest, LEAST_VERSION_WITH_SESSIONS)
def sessions(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch())
    asked = FetchPartition(partition=0, fetch_offset=talk.offset("orders", 0), partition_max_bytes=1000)
    for session_id, epoch, label in (
        (0, 0, "a new session"),
        (0, -1, "no session"),
        (77, 1, "a session that there is not"),
        (77, -1, "the end of a session that there is not"),
        (0, 5, "an epoch without a session"),
    ):
        request = several(talk, version, asked, session_id=session_id, session_epoch=epoch)
        talk.ask(request, version, label)


@scenario(FetchRequest, LEAST_VERSION_WITH_SESSIONS)
def incremental_sessions(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=3)

    def asked(*partitions: int, number: int = 0) -> list[FetchPartition]:
        offset = talk.offset("orders", number) if number else 0
        return [
            FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=1000)
            for each in partitions
        ]

    def ask(label: str, session: tuple[int, int], *partitions: FetchPartition, forgotten: int = -1) -> int:
        request = several(talk, version, *partitions, session_id=session[0], session_epoch=session[1])
        if not partitions:
            request.topics = []
        if forgotten >= 0:
            named = fetch_topic(talk, "orders", version)
            request.forgotten_topics_data = [
                ForgottenTopic(topic=named.topic, topic_id=named.topic_id, partitions=[forgotten])
            ]
        answer = talk.ask(request, version, label)
        return int(answer.session_id)

    begun = ask("a new session", (0, 0), *asked(0, 1, 2))
    ask("nothing has changed", (begun, 1))
    talk.tell(produce(topic, batch(b"new")))
    ask("a record in one partition", (begun, 2))
    ask("the same record", (begun, 3))
    ask("past the record", (begun, 4), *asked(0, number=1))
    ask("an epoch of the past", (begun, 3))
    ask("an epoch of the future", (begun, 7))
    ask("a partition that there is not", (begun, 5), *asked(9))
    ask("its error again", (begun, 6))
    ask("without it", (begun, 7), forgotten=9)
    ask("an empty partition is forgotten", (begun, 8), forgotten=1)
    ask("and comes again", (begun, 9), *asked(1))
    ask("the end of the session", (begun, -1), *asked(0))
    ask("after its end", (begun, 10))
    another = ask("another session", (0, 0), *asked(0))
    ask("all partitions are forgotten", (another, 1), forgotten=0)
    ask("the session is gone", (another, 2))


@scenario(FetchRequest, 12, 13)
def session_that_mixes_names_and_ids(talk: Talk, version: int) -> None:
    talk.topic("orders")
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    begun = talk.ask(several(talk, version, asked, session_epoch=0), version, "a new session").session_id
    other = 25 - version
    request = several(talk, other, asked, session_id=begun, session_epoch=1)
    talk.ask(request, other, "with the other form of topics")


@scenario(FetchRequest, LEAST_VERSION_WITH_SESSIONS)
def requests_in_a_session(talk: Talk, version: int) -> None:
    """Fetch in a session that begins with two of three partitions."""
    name = talk.topic("orders", partitions=3)
    talk.fill("orders", batch(b"0"))
    session = Session(talk, version)
    session.ask("a new session", {0: 0, 1: 0})
    session.ask("nothing requested", {})
    session.ask("behind the record", {0: 1})
    session.ask("nothing to read", {})
    talk.tell(produce(name, batch(b"1"), partition=1))
    session.ask("a record for an idle partition", {})
    session.ask("the same record", {})
    session.ask("an added partition", {1: 1, 2: 0})
    talk.tell(produce(name, batch(b"1"), partition=1))
    talk.tell(produce(name, batch(b"1")))
    session.ask("two partitions have records", {}, max_bytes=1)
    session.ask("the other one has its turn", {}, max_bytes=1)
    session.ask("a forgotten partition", {}, forget=[1])
    session.ask("beyond the end", {0: 1000})
    session.ask("an error stays", {})
    session.ask("a missing partition", {0: 2, 7: 0})
    session.epoch += 1
    session.ask("an epoch too high", {})
    session.epoch -= 2
    session.ask("the first epochs", {}, epoch=1)
    session.ask("goes on", {}, forget=[7])
    if version >= FETCH_BY_ID:
        session.ask("names instead of ids", {}, version=FETCH_BY_ID - 1)
        session.epoch -= 1
    elif version == FETCH_BY_ID - 1:
        session.ask("ids instead of names", {}, version=FETCH_BY_ID)
        session.epoch -= 1
    session.ask("all forgotten", {}, forget=[0, 2])
    session.ask("a session that was closed", {})


@scenario(FetchRequest, LEAST_VERSION_WITH_SESSIONS)
def session_that_is_ended(talk: Talk, version: int) -> None:
    talk.topic("orders")
    session = Session(talk, version)
    session.ask("a new session", {0: 0})
    session.ask("its end", {0: 0}, epoch=-1)
    session.ask("after its end", {}, epoch=1)


@scenario(FetchRequest, LEAST_VERSION_WITH_SESSIONS)
def topic_of_a_session_is_recreated(talk: Talk, version: int) -> None:
    name = talk.topic("orders")
    session = Session(talk, version)
    session.ask("a new session", {0: 0})
    session.ask("nothing requested", {})
    talk.tell(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000))
    talk.until_gone("orders")
    session.ask("deleted", {})
    talk.topic("orders")
    session.ask("created again", {})


@scenario(FetchRequest)
def isolation_levels(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch())
    for level in (0, 1, 2, -1):
        talk.ask(fetch(talk, "orders", 0, version=version, isolation_level=level), version, f"level {level}")


@scenario(FetchRequest)
def long_poll_that_ends_with_a_record(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    consumer = talk.client()
    asked = fetch(talk, "orders", 0, version=version, max_wait_ms=10_000, min_bytes=1)
    talk.send(asked, version, on=consumer)
    talk.tell(produce(topic, batch(b"late")))
    talk.receive(asked, version, on=consumer)


@scenario(FetchRequest, 4, 4)
def long_poll_that_times_out(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.fill("orders", batch())
    began = time.monotonic()
    talk.ask(fetch(talk, "orders", 1, version=version, max_wait_ms=700, min_bytes=1), version)
    talk.note("whether it waited", time.monotonic() - began > 0.6)
    began = time.monotonic()
    talk.ask(fetch(talk, "orders", 0, version=version, max_wait_ms=700, min_bytes=100_000), version)
    talk.note("whether it waited for more bytes", time.monotonic() - began > 0.6)
    began = time.monotonic()
    talk.ask(fetch(talk, "orders", 1, version=version, max_wait_ms=5000, min_bytes=0), version)
    talk.note("whether it waited for no bytes", time.monotonic() - began > 4)


@scenario(FetchRequest, 4, 4)
def partition_max_bytes_below_min_bytes(talk: Talk, version: int) -> None:
    """Wait for more bytes than a partition's limit allows; also at the end of the log."""
    talk.topic("orders", partitions=2)
    each = batch(b"x" * 1000)
    talk.fill("orders", *[each] * 10)
    limit = 4 * len(each) + 5
    for number in (0, 5, 6, 7, 9):
        asked = FetchPartition(
            partition=0, fetch_offset=talk.offset("orders", number), partition_max_bytes=limit
        )
        began = time.monotonic()
        talk.tell(several(talk, version, asked, max_wait_ms=700, min_bytes=limit), version)
        talk.note(f"whether it waited from record {number} on", time.monotonic() - began > 0.6)


@scenario()
def old_id_of_a_recreated_topic(talk: Talk, _version: int) -> None:
    name = talk.topic("orders")
    asked = fetch(talk, "orders", 0)
    talk.tell(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000))
    talk.until_gone("orders")
    talk.ask(asked, label="deleted")
    talk.topic("orders")
    talk.ask(asked, label="made anew")


@scenario()
def compressed_topics(talk: Talk, _version: int) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed"):
        talk.topic(codec, compression_type=codec)
        talk.fill(codec, batch(b"x" * 200, b"y" * 200, codec=Codec.GZIP))
        answer = talk.tell(fetch(talk, codec, 0))
        attributes = b"".join(answer.responses[0].partitions[0].records)[22]
        talk.note(f"the codec of a {codec} topic's batches", Codec(attributes & 7).name)
