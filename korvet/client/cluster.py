"""What the client knows of a cluster: its brokers, the topics' leaders, and connections that are not in use.

There are no background tasks: a request takes a free connection to its broker, or opens one, and puts it back. So
several requests may be under way at once, each on a connection of its own (a Fetch that waits holds up
nobody), and cancelling one closes its connection only.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
from attrs import define, field

from korvet.client.connection import CLOSED_AT_ONCE, Address, BrokerConnection
from korvet.client.model import Partition, Topic, TopicPartition
from korvet.client.security import PLAINTEXT, Security
from korvet.client.tls import TlsRefused, explain
from korvet.protocol.errors import (
    BrokerNotAvailable,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    error_for,
)
from korvet.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from korvet.protocol.schema import MAX_VERSION

R = TypeVar("R")
T = TypeVar("T")

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 1.0
# Brokers hear of a new topic one after the other. Nobody wants to wait longer to be told of a slip of the pen.
UNKNOWN_TOPIC_PATIENCE_S = 3.0

log = logging.getLogger(__name__)


@define
class Cluster:
    """Routes requests to the brokers they belong to, and repeats what may succeed when repeated."""

    bootstrap: tuple[Address, ...]
    client_id: str
    request_timeout_s: float
    retry_timeout_s: float
    security: Security = PLAINTEXT
    _context: ssl.SSLContext | None = field(default=None, init=False)
    cluster_id: str | None = field(default=None, init=False)
    controller_id: int = field(default=-1, init=False)
    brokers: dict[int, Address] = field(factory=dict, init=False)
    # Those asked for lately; forgotten whenever an error hints that it may not be so any more.
    _topics: dict[str, Topic] = field(factory=dict, init=False)
    _free: dict[Address, list[BrokerConnection]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.security.tls is not None:
            self._context = self.security.tls.context()

    async def close(self) -> None:
        """Close the connections that are not in use; those in use end with their requests."""
        for connections in self._free.values():
            while connections:
                await connections.pop().close()

    # --- Requests ---------------------------------------------------------------------------------------

    async def request(
        self,
        address: Address,
        message: object,
        response: type[R],
        *,
        min_version: int = 0,
        max_version: int = MAX_VERSION,
        wait_s: float = 0.0,
    ) -> R:
        """Ask one broker; whatever happens to the connection becomes a KafkaError naming the broker.

        `wait_s` is how long the broker was told to wait, beyond the time requests may take.
        """
        async with self._connection(address, type(message).__name__, wait_s) as connection:
            return await connection.request(
                message, response, min_version=min_version, max_version=max_version
            )

    async def send(self, address: Address, message: object) -> None:
        """Send one broker a request that it does not answer."""
        async with self._connection(address, type(message).__name__, 0.0) as connection:
            await connection.send(message)

    async def ask_any(self, message: object, response: type[R], *, max_version: int = MAX_VERSION) -> R:
        """Ask the first broker that answers, of those known and of those we were told to begin with."""
        error: KafkaError | None = None
        for address in dict.fromkeys((*self.brokers.values(), *self.bootstrap)):
            try:
                return await self.request(address, message, response, max_version=max_version)
            except (NetworkException, RequestTimedOut, BrokerNotAvailable) as e:
                error = error or e
        raise error or BrokerNotAvailable("No broker was named.")

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run `attempt` until it succeeds, for as long as its errors are retriable and there is time.

        After each of them what is known of the cluster is asked for anew: there may be other leaders.
        """
        started = trio.current_time()
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._topics.clear()
                self.controller_id = -1
                unknown = isinstance(error, UnknownTopicOrPartition)
                patience_s = UNKNOWN_TOPIC_PATIENCE_S if unknown else self.retry_timeout_s
                patience_s = min(patience_s, self.retry_timeout_s)
                if trio.current_time() + backoff_s > started + patience_s:
                    raise
                log.debug("trying again in %.2f s: %s", backoff_s, error)
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    @asynccontextmanager
    async def _connection(
        self, address: Address, name: str, wait_s: float
    ) -> AsyncIterator[BrokerConnection]:
        limit_s = self.request_timeout_s + wait_s
        try:
            with trio.fail_after(limit_s):
                free = self._free.setdefault(address, [])
                connection = await self._connected(address, free)
                try:
                    yield connection
                except BaseException:
                    await connection.close()
                    raise
                free.append(connection)
        except trio.TooSlowError:
            raise RequestTimedOut(f"{address} did not answer a {name} within {limit_s:g} s.") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
            if refusal := explain(error):
                raise TlsRefused(f"{address}: {refusal}.") from error
            raise NetworkException(f"{address}: {_reason(error)}.") from error
        except ProtocolError as error:
            raise BrokerNotAvailable(f"{address} does not speak Kafka's protocol: {error}.") from error

    async def _connected(self, address: Address, free: list[BrokerConnection]) -> BrokerConnection:
        """A connection that was not in use, or another."""
        while free:
            connection = free.pop()
            if not connection.is_over:
                return connection
            await connection.close()
        return await BrokerConnection.connect(address, self.client_id, self.security, self._context)

    # --- Metadata ---------------------------------------------------------------------------------------

    async def refresh(
        self, names: Collection[str] | None, *, allow_auto_topic_creation: bool = False
    ) -> dict[str, Topic | KafkaError]:
        """Ask for the brokers and for topics by name (None: all); each topic, or what is wrong with it."""
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=allow_auto_topic_creation,
        )
        # Before version 4 a broker creates what is asked for as it likes.
        answer = await self.ask_any(request, MetadataResponse)
        self.brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        topics = {topic.name or "": _topic_or_error(topic) for topic in answer.topics}
        self._topics.update((name, topic) for name, topic in topics.items() if isinstance(topic, Topic))
        return topics

    async def topic(self, name: str, *, allow_auto_topic_creation: bool = False) -> Topic:
        """One topic, as known or asked for; raises what is wrong with it."""
        known = self._topics.get(name)
        if known is not None:
            return known
        topics = await self.refresh([name], allow_auto_topic_creation=allow_auto_topic_creation)
        topic = topics.get(name) or UnknownTopicOrPartition(f"There is no topic {name}.")
        if isinstance(topic, KafkaError):
            raise topic
        return topic

    async def controller(self) -> Address:
        """The broker that creates and deletes topics; any of them where none says it is the one."""
        if self.controller_id not in self.brokers:
            await self.refresh([])
        return self.brokers.get(self.controller_id) or next(iter(self.brokers.values()))

    async def each_leader(
        self,
        tps: Iterable[TopicPartition],
        ask: Callable[[Address, list[TopicPartition]], Awaitable[None]],
    ) -> None:
        """Run `ask` for every broker that leads some of `tps`, all at once; then raise the worst of their errors."""
        led: dict[Address, list[TopicPartition]] = {}
        for tp in tps:
            led.setdefault(await self._leader(tp), []).append(tp)
        errors: list[KafkaError] = []

        async def ask_one(address: Address, tps: list[TopicPartition]) -> None:
            try:
                await ask(address, tps)
            except KafkaError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for address, group in led.items():
                nursery.start_soon(ask_one, address, group)
        raise_worst(errors)

    async def _leader(self, tp: TopicPartition) -> Address:
        topic = await self.topic(tp.topic)
        found = next(
            (partition for partition in topic.partitions if partition.partition == tp.partition), None
        )
        if found is None:
            raise UnknownTopicOrPartition(
                f"{tp.topic} has {len(topic.partitions)} partitions; there is no {tp}."
            )
        if found.leader_id not in self.brokers:
            raise LeaderNotAvailable(f"{tp} has no leader at the moment.")
        return self.brokers[found.leader_id]


def raise_for(code: int, subject: object, message: str | None = None) -> None:
    """Raise what an error code means, in the broker's words where there are any, and about what; 0 means nothing."""
    if code:
        raise error_about(code, subject, message)


def error_about(code: int, subject: object, message: str | None = None) -> KafkaError:
    """The error that a code other than 0 means, saying what it is about."""
    error = error_for(code)
    return type(error)(f"{subject}: {message or error.message}")


def raise_worst(errors: Collection[KafkaError]) -> None:
    """Raise one of the errors, rather one that will not go away; nothing where there are none."""
    if errors:
        raise min(errors, key=lambda error: error.retriable)


def _topic_or_error(topic: MetadataResponseTopic) -> Topic | KafkaError:
    if topic.error_code:
        return error_about(topic.error_code, topic.name)
    partitions = (
        Partition(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
        )
        for partition in topic.partitions
    )
    return Topic(
        topic.name or "",
        topic.topic_id,
        topic.is_internal,
        tuple(sorted(partitions, key=lambda partition: partition.partition)),
    )


def _reason(error: BaseException) -> str:
    """What the system said, from below the layers that tried several addresses."""
    while error.__cause__ is not None:
        error = error.__cause__
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ssl.SSLError):  # an OSError with numbers of its own
        return CLOSED_AT_ONCE if isinstance(error, ssl.SSLEOFError) else str(error)
    if isinstance(error, OSError):
        # Trio's own words repeat the address. Errors of name resolution have negative numbers and words.
        number = error.errno or 0
        return os.strerror(number) if number > 0 else error.strerror or str(error)
    return str(error) or type(error).__name__
