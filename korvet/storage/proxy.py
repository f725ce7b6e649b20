"""A storage that passes every call to another one, for storages that do something before and after it."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from attrs import define

from korvet.storage.failed_sequences import FailedSequences
from korvet.storage.interface import (
    DocumentWatch,
    Measurements,
    Storage,
    StorageDefaults,
    Topic,
    TopicPartition,
    Watch,
)


def forwarded(name: str) -> Any:
    """Return a method that passes its arguments to `call`."""

    def method(self: StorageProxy, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return self.call(name, args, kwargs)

    return method


@define(eq=False)
class StorageProxy(Storage):
    """See the module. Subclasses override `call`, and methods that need more."""

    storage: Storage

    # These need no wait, which `call` may have to do. The broker then uses the methods that are forwarded.
    try_append: ClassVar[Any] = Storage.try_append
    try_read: ClassVar[Any] = Storage.try_read
    try_ack: ClassVar[Any] = Storage.try_ack
    known_topics: ClassVar[Any] = Storage.known_topics
    known_topic: ClassVar[Any] = Storage.known_topic
    known_topic_by_id: ClassVar[Any] = Storage.known_topic_by_id
    append: ClassVar[Any] = forwarded("append")
    begin_append: ClassVar[Any] = forwarded("begin_append")
    write_markers: ClassVar[Any] = forwarded("write_markers")
    active_producers: ClassVar[Any] = forwarded("active_producers")
    read: ClassVar[Any] = forwarded("read")
    earliest: ClassVar[Any] = forwarded("earliest")
    latest: ClassVar[Any] = forwarded("latest")
    seek_ts: ClassVar[Any] = forwarded("seek_ts")
    seek_max_ts: ClassVar[Any] = forwarded("seek_max_ts")
    epoch_end: ClassVar[Any] = forwarded("epoch_end")
    truncate_before: ClassVar[Any] = forwarded("truncate_before")
    enforce_retention: ClassVar[Any] = forwarded("enforce_retention")
    compact: ClassVar[Any] = forwarded("compact")
    sizes: ClassVar[Any] = forwarded("sizes")
    ack: ClassVar[Any] = forwarded("ack")
    fence: ClassVar[Any] = forwarded("fence")
    committed: ClassVar[Any] = forwarded("committed")
    stage: ClassVar[Any] = forwarded("stage")
    settle: ClassVar[Any] = forwarded("settle")
    unstable: ClassVar[Any] = forwarded("unstable")
    forget: ClassVar[Any] = forwarded("forget")
    topics: ClassVar[Any] = forwarded("topics")
    topic: ClassVar[Any] = forwarded("topic")
    topic_by_id: ClassVar[Any] = forwarded("topic_by_id")
    create_topic: ClassVar[Any] = forwarded("create_topic")
    alter_topic: ClassVar[Any] = forwarded("alter_topic")
    delete_topic: ClassVar[Any] = forwarded("delete_topic")
    load: ClassVar[Any] = forwarded("load")
    save: ClassVar[Any] = forwarded("save")
    save_in: ClassVar[Any] = forwarded("save_in")
    load_parts: ClassVar[Any] = forwarded("load_parts")
    save_parts: ClassVar[Any] = forwarded("save_parts")
    documents: ClassVar[Any] = forwarded("documents")
    announce: ClassVar[Any] = forwarded("announce")
    open_share: ClassVar[Any] = forwarded("open_share")
    acquire_share: ClassVar[Any] = forwarded("acquire_share")
    acknowledge_share: ClassVar[Any] = forwarded("acknowledge_share")
    release_share: ClassVar[Any] = forwarded("release_share")
    share_offsets: ClassVar[Any] = forwarded("share_offsets")
    share_in_flight: ClassVar[Any] = forwarded("share_in_flight")
    reset_share: ClassVar[Any] = forwarded("reset_share")
    forget_shares: ClassVar[Any] = forwarded("forget_shares")
    read_measurements: ClassVar[Any] = forwarded("read_measurements")

    def configure(self, defaults: StorageDefaults) -> None:
        self.storage.configure(defaults)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Call the method of that name of the other storage."""
        call: Awaitable[Any] = getattr(self.storage, name)(*args, **kwargs)
        return call

    def checks_records(self, topic: Topic) -> bool:
        return self.storage.checks_records(topic)

    def keeps_shares(self, topic: Topic) -> bool:
        return self.storage.keeps_shares(topic)

    def incarnation(self, kind: str, key: str) -> str:
        return self.storage.incarnation(kind, key)

    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        return self.storage.watch(tps)

    def watch_documents(self, kind: str) -> AbstractContextManager[DocumentWatch]:
        return self.storage.watch_documents(kind)

    def start_counting(self) -> None:
        self.storage.start_counting()

    def measurements(self) -> Measurements:
        return self.storage.measurements()

    @property
    def newest_leader_epoch(self) -> int:
        return self.storage.newest_leader_epoch

    @property
    def failed_sequences(self) -> FailedSequences:
        return self.storage.failed_sequences

    @property
    def held_bytes(self) -> int:
        return self.storage.held_bytes

    @property
    def description(self) -> str:  # type: ignore[override]  # read only
        return self.storage.description

    @property
    def durability(self) -> str:  # type: ignore[override]  # read only
        return self.storage.durability

    @property
    def is_elsewhere(self) -> bool:  # type: ignore[override]  # read only
        return self.storage.is_elsewhere

    @property
    def serves_transactions(self) -> bool:  # type: ignore[override]  # read only
        return self.storage.serves_transactions
