"""The client's state of a cluster: its brokers, the topics' leaders, and a pool of idle connections.

There are no background tasks. A request takes an idle connection to its broker, or opens one, and puts it back. So
concurrent requests use separate connections: a Fetch that waits does not delay other requests, and cancelling a request
closes only its connection.
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
from korvet.client.tls import CLOSED_EARLY, TlsRefused, explain
from korvet.protocol.errors import (
    BrokerNotAvailable,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for,
)
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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
# Brokers learn of a new topic one after the other, so UNKNOWN_TOPIC_OR_PARTITION is retried, but only for a short time:
# the usual cause is a misspelled name.
UNKNOWN_TOPIC_PATIENCE_S = 3.0
# The types of keys that have a coordinator, and the last version in which a request has a single key.
GROUP, TRANSACTION = 0, 1
FIND_ONE_COORDINATOR = 3

log = logging.getLogger(__name__)


@define
class Cluster:
    """Routes requests to brokers, and retries them after retriable errors."""

    bootstrap: tuple[Address, ...]
    client_id: str
    request_timeout_s: float
    retry_timeout_s: float
    security: Security = PLAINTEXT
    _context: ssl.SSLContext | None = field(default=None, init=False)
    cluster_id: str | None = field(default=None, init=False)
    controller_id: int = field(default=-1, init=False)
    brokers: dict[int, Address] = field(factory=dict, init=False)
    # Cached descriptions, cleared after each retriable error, since it may mean that they are outdated.
    _topics: dict[str, Topic] = field(factory=dict, init=False)
    _free: dict[Address, list[BrokerConnection]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.security.tls is not None:
            self._context = self.security.tls.context()

    async def close(self) -> None:
        """Close the idle connections."""
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
        """Send a request to one broker and return its response. Connection errors become KafkaErrors with its address.

        `wait_s` is the time that the request lets the broker wait; it is added to the request timeout.
        """
        async with self._connection(address, type(message).__name__, wait_s) as connection:
            return await connection.request(
                message, response, min_version=min_version, max_version=max_version
            )

    async def send(self, address: Address, message: object, *, max_version: int = MAX_VERSION) -> None:
        """Send a request that has no response to one broker."""
        async with self._connection(address, type(message).__name__, 0.0) as connection:
            await connection.send(message, max_version=max_version)

    async def ask_any(self, message: object, response: type[R], *, max_version: int = MAX_VERSION) -> R:
        """Send a request to the first broker that answers, among the known brokers and the bootstrap addresses."""
        error: KafkaError | None = None
        for address in dict.fromkeys((*self.brokers.values(), *self.bootstrap)):
            try:
                return await self.request(address, message, response, max_version=max_version)
            except (NetworkException, RequestTimedOut, BrokerNotAvailable) as e:
                error = error or e
        raise error or BrokerNotAvailable("No broker was named.")

    async def coordinator(self, key: str, key_type: int = GROUP) -> Address:
        """Return the address of the broker that coordinates a group or a transactional id. It is not retried."""
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        answer = await self.ask_any(request, FindCoordinatorResponse, max_version=FIND_ONE_COORDINATOR)
        kind = "group" if key_type == GROUP else "transactional id"
        raise_for(answer.error_code, f"{kind} {key}", answer.error_message)
        return Address(answer.host, answer.port)

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds, raises an error that is not retriable, or the retry timeout has passed.

        Each retriable error clears the cached topics and the controller, because the leaders may have changed.
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
                log.debug(
                    "trying again in %(seconds).2f s: %(error)s", {"seconds": backoff_s, "error": error}
                )
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
                except UnsupportedVersion:
                    free.append(connection)  # nothing was sent
                    raise
                except BaseException:
                    await connection.close()
                    raise
                free.append(connection)
        except trio.TooSlowError:
            raise RequestTimedOut(f"{address} did not answer a {name} within {limit_s:g} s.") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
            if refusal := explain(error):
                raise TlsRefused(f"{address}: {refusal}.") from error
            raise NetworkException(f"{self._named(address)}: {_reason(error)}.") from error
        except ProtocolError as error:
            raise BrokerNotAvailable(f"{address} does not speak Kafka's protocol: {error}.") from error

    def _named(self, address: Address) -> str:
        """Return the address, and which broker advertises it if the caller did not name it."""
        ids = [node_id for node_id, known in self.brokers.items() if known == address]
        if address in self.bootstrap or not ids:
            return str(address)
        return f"{address} (advertised by broker {ids[0]})"

    async def _connected(self, address: Address, free: list[BrokerConnection]) -> BrokerConnection:
        """Return an idle connection, or a new one."""
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
        """Request Metadata: update the brokers, and return the topics of these names (None: all), or their errors."""
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=allow_auto_topic_creation,
        )
        # Before version 4 of Metadata, the broker's configuration alone decides whether a topic is created.
        answer = await self.ask_any(request, MetadataResponse)
        self.brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        topics = {topic.name or "": _topic_or_error(topic) for topic in answer.topics}
        self._topics.update((name, topic) for name, topic in topics.items() if isinstance(topic, Topic))
        return topics

    async def topic(self, name: str, *, allow_auto_topic_creation: bool = False) -> Topic:
        """Return a topic from the cache, or request it. Raises the topic's error."""
        known = self._topics.get(name)
        if known is not None:
            return known
        topics = await self.refresh([name], allow_auto_topic_creation=allow_auto_topic_creation)
        topic = topics.get(name) or UnknownTopicOrPartition(f"There is no topic {name}.")
        if isinstance(topic, KafkaError):
            raise topic
        return topic

    async def controller(self) -> Address:
        """Return the address of the controller, or of any broker if the controller is unknown."""
        if self.controller_id not in self.brokers:
            await self.refresh([])
        return self.brokers.get(self.controller_id) or next(iter(self.brokers.values()))

    async def each_leader(
        self,
        tps: Iterable[TopicPartition],
        ask: Callable[[Address, list[TopicPartition]], Awaitable[None]],
    ) -> None:
        """Call `ask` concurrently for every broker that leads some of `tps`, then raise the worst of their errors."""
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
        leader_id = topic.leaders.get(tp.partition)
        if leader_id is None:
            raise UnknownTopicOrPartition(
                f"{tp.topic} has {len(topic.partitions)} partitions; there is no {tp}."
            )
        if leader_id not in self.brokers:
            raise LeaderNotAvailable(f"{tp} has no leader at the moment.")
        return self.brokers[leader_id]


def raise_for(code: int, subject: object, message: str | None = None) -> None:
    """Raise the error of an error code other than 0, with the subject and the broker's message if there is one."""
    if code:
        raise error_about(code, subject, message)


def error_about(code: int, subject: object, message: str | None = None) -> KafkaError:
    """Return the error of an error code other than 0, with the subject in its message."""
    error = error_for(code)
    return type(error)(f"{subject}: {message or error.message}")


def raise_worst(errors: Collection[KafkaError]) -> None:
    """Raise one of the errors, preferably one that is not retriable. Do nothing if there are none."""
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
    """Return the system's message for a connection error, without the exceptions that wrap it."""
    while error.__cause__ is not None:
        error = error.__cause__
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ssl.SSLError):  # an OSError whose errno is OpenSSL's
        return CLOSED_AT_ONCE if isinstance(error, CLOSED_EARLY) else str(error)
    if isinstance(error, OSError):
        # Trio's message repeats the address. Errors of name resolution have negative numbers and a strerror.
        number = error.errno or 0
        return os.strerror(number) if number > 0 else error.strerror or str(error)
    return str(error) or type(error).__name__
