"""A broker in a thread of this process, for tests that do not run Trio."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from typing import Any, TypeVar

import trio
from attrs import define, field

from korvet.faults.injection import Faults
from korvet.testing.broker import LIMIT_S, PAUSE_S, Data, ReceivedRecord, ServedBroker, not_in_time, serving
from korvet.testing.clients import AioKafka, Confluent, KafkaPython

T = TypeVar("T")


class BrokerEnded(Exception):  # noqa: N818  names the condition
    """The broker does not run any more."""


@define(eq=False)
class Portal:
    """Runs functions in the thread of the broker."""

    _nursery: trio.Nursery
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an asynchronous function and return its result. Raises its error, and BrokerEnded."""
        future: Future[T] = Future()
        try:
            self._token.run_sync_soon(self._start, future, function)
        except trio.RunFinishedError:
            raise BrokerEnded from None
        return future.result()

    def stop(self) -> None:
        """End the nursery. Does nothing if it has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._nursery.cancel_scope.cancel)

    def _start(self, future: Future[T], function: Callable[[], Awaitable[T]]) -> None:
        try:
            self._nursery.start_soon(fulfil, future, function)
        except RuntimeError:  # the nursery is closed
            future.set_exception(BrokerEnded())


async def fulfil(future: Future[T], function: Callable[[], Awaitable[T]]) -> None:
    """Set the future to the function's result or error."""
    try:
        future.set_result(await function())
    except trio.Cancelled:
        future.set_exception(BrokerEnded())
        raise
    except Exception as error:  # noqa: BLE001  raised by the caller
        future.set_exception(error)


@define(eq=False, repr=False)
class RunningBroker:
    """A broker in another thread. All methods block, and may be called from any thread."""

    bootstrap_servers: str
    _broker: ServedBroker
    _portal: Portal
    _clients: ExitStack = field(factory=ExitStack)

    def __repr__(self) -> str:
        return f"<RunningBroker {self.bootstrap_servers}>"

    def _repr_pretty_(self, printer: Any, _is_cycle: object) -> None:
        # Hypothesis prints the arguments of each test, and otherwise all parts of the broker: 362 kB.
        printer.text(repr(self))

    def new_name(self, prefix: str = "topic") -> str:
        """Return a name for a topic or a group that no other call has returned."""
        return self._broker.new_name(prefix)

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, by default with a new name, and return its name. Raises KafkaError."""
        return self._portal.call(
            lambda: self._broker.create_topic(name, partitions=partitions, settings=settings)
        )

    def produce(
        self,
        topic: str,
        *values: Data,
        key: Data = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
        partition: int = 0,
    ) -> list[int]:
        """Append records to a topic as `ServedBroker.produce` does, and return their offsets."""
        return self._portal.call(
            lambda: self._broker.produce(
                topic, *values, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
            )
        )

    def records(self, topic: str, partition: int | None = None) -> list[ReceivedRecord]:
        """Return all records of a topic or of one partition, by partition and offset. Raises KafkaError."""
        return self._portal.call(lambda: self._broker.records(topic, partition))

    def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of a group by partition of the topic."""
        return self._portal.call(lambda: self._broker.committed(group_id, topic))

    def wait_until(self, condition: Callable[[], T], timeout_s: float = LIMIT_S) -> T:
        """Call `condition` repeatedly until its result is true, and return the result. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise not_in_time(condition, timeout_s)
            time.sleep(PAUSE_S)
        return result

    @property
    def faults(self) -> Faults:
        """The faults that the broker applies to requests."""
        return self._broker.faults

    def expire_member(self, group_id: str, member_id: str | None = None) -> None:
        """Remove a member of a group, or all, as if its session had timed out. Raises GroupIdNotFound."""
        self._portal.call(lambda: self._broker.expire_member(group_id, member_id))

    @property
    def confluent(self) -> Confluent:
        """Clients of confluent-kafka that are connected to the broker."""
        return Confluent(self.bootstrap_servers, self.new_name, self._clients)

    @property
    def kafka_python(self) -> KafkaPython:
        """Clients of kafka-python that are connected to the broker."""
        return KafkaPython(self.bootstrap_servers, self.new_name, self._clients)

    @property
    def aiokafka(self) -> AioKafka:
        """Clients of aiokafka for the broker."""
        return AioKafka(self.bootstrap_servers, self.new_name, self._clients)


@contextmanager
def running_broker(
    storage: str = "memory", settings: Mapping[str, str] | None = None
) -> Iterator[RunningBroker]:
    """Run a broker in a thread for the time of a block. At the end, close its clients and wait for the thread.

    The storage is `memory`, `embedded` for a private server in a temporary folder, or any storage URL. Raises the error
    of a broker that does not start (ConfigError, ListenError, StorageUsageError), and of a broker that failed.
    """
    ready: Future[RunningBroker] = Future()
    ended: Future[None] = Future()
    thread = Thread(target=run, args=(storage, settings, ready, ended), name="korvet", daemon=True)
    thread.start()
    broker = ready.result()
    try:
        with broker._clients:  # noqa: SLF001  it owns the clients that it has handed out
            yield broker
    finally:
        broker._portal.stop()  # noqa: SLF001  as above
        thread.join()
    ended.result()


def run(
    storage: str, settings: Mapping[str, str] | None, ready: Future[RunningBroker], ended: Future[None]
) -> None:
    """Run a broker until its portal is stopped, and report its start and its end."""
    try:
        trio.run(serve, storage, settings, ready)
    except BaseException as error:  # noqa: BLE001  raised by the thread that waits
        (ended if ready.done() else ready).set_exception(error)
    else:
        ended.set_result(None)


async def serve(storage: str, settings: Mapping[str, str] | None, ready: Future[RunningBroker]) -> None:
    async with serving(storage, settings) as broker, trio.open_nursery() as nursery:
        ready.set_result(RunningBroker(broker.bootstrap_servers, broker, Portal(nursery)))
        await trio.sleep_forever()
