"""Transactional clients of the simulation at real brokers, in real time. Many of their requests arrive late.

A client gives a request up and sends it again over another connection. The broker gets the first one later, as if it
had been in the buffer of a socket: perhaps when the transaction has ended, or amid the next one.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count
from random import Random
from typing import Any

import trio
from attrs import define, field

from korvet.handlers import APIS
from korvet.protocol.buffers import Buffer
from korvet.storage.interface import TopicPartition
from korvet.testing.simulation.clients import TOPIC, GroupSettings, Member, Producer
from korvet.testing.simulation.consumers import Consumer
from korvet.testing.simulation.history import History
from korvet.testing.simulation.transactional import (
    OUTPUT,
    Mover,
    Reader,
    Transactions,
    TransactionSettings,
    Writer,
)
from korvet.testing.transaction_history import Partition

PARTITIONS = 3
INPUTS: list[Partition] = [(TOPIC, number) for number in range(PARTITIONS)]
OUTPUTS: list[Partition] = [(OUTPUT, number) for number in range(PARTITIONS)]
GROUP = "invoicing"
#: The members of the group: its leader assigns their partitions, or the broker does.
KINDS = (Member, Member, Consumer)
TIMEOUT_S = 5.0  # of transactions; requests are at most as late
GIVES_UP = 0.2
LOOK_S = 0.1
MOVED_LIMIT_S = 150.0
ANSWER_LIMIT_S = 30.0


@define(eq=False)
class LateStream:
    """A connection. A task of the network delivers the requests that are sent after `lag`."""

    network: TcpNetwork
    stream: trio.SocketStream
    _lag_s: float = 0.0

    def lag(self, seconds: float) -> None:
        self._lag_s = seconds

    async def send_all(self, data: Buffer) -> None:
        if self._lag_s:
            self.network.nursery.start_soon(self.network.deliver, self.stream, bytes(data), self._lag_s)
        else:
            await self.stream.send_all(data)

    async def receive_some(self) -> bytes:
        return bytes(await self.stream.receive_some())

    async def aclose(self) -> None:
        if not self._lag_s:
            await self.stream.aclose()


@define(eq=False)
class TcpNetwork:
    """The way to brokers, which are named by their addresses."""

    nursery: trio.Nursery
    delivered: Counter[str] = field(factory=Counter)  # late requests that a broker has answered, by API

    def broker_at(self, host: str, port: int) -> str:
        return f"{host}:{port}"

    async def connect(self, broker: str, _client: str) -> LateStream:
        host, _, port = broker.rpartition(":")
        return LateStream(self, await trio.open_tcp_stream(host, int(port)))

    async def deliver(self, stream: trio.SocketStream, data: bytes, after_s: float) -> None:
        """Send a request late, and drop the answer."""
        try:
            async with stream:
                await trio.sleep(after_s)
                with trio.move_on_after(ANSWER_LIMIT_S):
                    await stream.send_all(data)
                    if await stream.receive_some():
                        self.delivered[APIS[int.from_bytes(data[4:6])].name] += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the broker was killed


@define(eq=False)
class LateLoad:
    """Producers, movers, writers and a reader, half of them of each version of the protocol.

    `run` returns when `finish` was called, in another thread, and all inputs were moved.
    """

    servers: tuple[str, ...]
    seed: int
    writers: int = 4
    history: History = field(factory=History)
    delivered: Counter[str] = field(factory=Counter)
    _ids: list[str] = field(factory=list)
    _names: count[int] = field(factory=count)
    _clients: list[Writer | Mover] = field(factory=list)
    _is_finishing: threading.Event = field(factory=threading.Event)

    def finish(self) -> None:
        """Let the load come to its end."""
        self._is_finishing.set()

    async def run(self) -> None:
        """Run the clients. Raises Violation in an exception group."""
        async with trio.open_nursery() as nursery:
            network = TcpNetwork(nursery, self.delivered)
            producer = Producer(**self._common(network, "producer"), partitions=PARTITIONS, between_s=0.3)
            producing = trio.Event()
            nursery.start_soon(self._produce, producer, producing)
            self._start_clients(network, nursery)
            reader = Reader(**self._common(network, "reader"), partitions=PARTITIONS, wait_s=0.5)
            nursery.start_soon(reader.run)
            while not self._is_finishing.is_set():  # noqa: ASYNC110  another thread sets it
                await trio.sleep(LOOK_S)
            producer.is_stopping = True
            await producing.wait()
            for client in self._clients:
                client.transactions.is_stopping = True
            await self._all_moved()
            for name in self._ids:  # ends what is still open, and waits for the markers
                async with self._transactions(network, name) as transactions:
                    transactions.is_stopping = True  # it neither dies nor gives the request up
                    await transactions.begin()
            nursery.cancel_scope.cancel()

    async def _produce(self, producer: Producer, done: trio.Event) -> None:
        await producer.run()
        done.set()

    def _start_clients(self, network: TcpNetwork, nursery: trio.Nursery) -> None:
        for number in range(self.writers):
            self._start(nursery, Writer(self._transactions(network, f"writer-{number}"), 0.1))
        settings = GroupSettings(GROUP, PARTITIONS, session_s=6.0, rebalance_s=6.0, heartbeat_s=0.5)
        for number, kind in enumerate(KINDS):
            transactions = self._transactions(network, f"mover-{number}")
            member = kind(**self._common(network, transactions.name), settings=settings)
            self._start(nursery, Mover(transactions, member))

    def _start(self, nursery: trio.Nursery, client: Writer | Mover) -> None:
        self._clients.append(client)
        nursery.start_soon(client.run)

    def _transactions(self, network: TcpNetwork, transactional_id: str) -> Transactions:
        number = next(self._names)
        if transactional_id not in self._ids:
            self._ids.append(transactional_id)
        settings = TransactionSettings(
            transactional_id, PARTITIONS, 1 + number % 2, TIMEOUT_S, gives_up=GIVES_UP
        )
        return Transactions(**self._common(network, f"{transactional_id}-{number}"), settings=settings)

    def _common(self, network: TcpNetwork, name: str) -> dict[str, Any]:
        chance = Random(f"{self.seed} {name}")
        return {
            "name": name,
            "network": network,
            "history": self.history,
            "chance": chance,
            "brokers": self.servers,
            "pause_s": 0.2,
        }

    async def _all_moved(self) -> None:
        """Wait until the members of the group are behind all inputs."""
        with trio.move_on_after(MOVED_LIMIT_S):
            while self._unmoved():  # noqa: ASYNC110  clients move them
                await trio.sleep(LOOK_S)
            return
        raise AssertionError(f"inputs that were not moved: {self._unmoved()}")

    def _unmoved(self) -> dict[str, tuple[TopicPartition, int]]:
        """Return the inputs that no member has passed, with their places."""
        members = [each.member for each in self._clients if isinstance(each, Mover)]
        positions = {tp: position for member in members for tp, position in member.positions.items()}
        return {
            value: (tp, offset)
            for value, (tp, offset) in self.history.acknowledged.items()
            if tp.topic == TOPIC and offset >= positions.get(tp, 0)
        }
