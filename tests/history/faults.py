"""Faults that a seed chooses, one after the other, while clients work."""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

from attrs import define, field, frozen

from tests.history.proxy import Proxy
from tests.processes import KorvetProcess
from tests.sentinels import Sentinel, SentinelSet
from tests.servers import RedisServer


class Fault(ABC):
    """A fault that begins and ends."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None:
        """Repair what `begin` broke."""


@frozen
class KillBroker(Fault):
    """A broker is killed with SIGKILL, and started again at the end."""

    broker: KorvetProcess

    def begin(self) -> None:
        self.broker.kill()

    def end(self) -> None:
        self.broker.start()


@frozen
class RestartBroker(Fault):
    """A broker is stopped with SIGTERM, and started again at the end."""

    broker: KorvetProcess

    def begin(self) -> None:
        self.broker.stop()

    def end(self) -> None:
        self.broker.start()


@frozen
class PauseBroker(Fault):
    """A broker is stopped with SIGSTOP until the end."""

    broker: KorvetProcess

    def begin(self) -> None:
        os.kill(self.broker.pid, signal.SIGSTOP)

    def end(self) -> None:
        os.kill(self.broker.pid, signal.SIGCONT)


@frozen
class KillWorker(Fault):
    """A process of a broker that has several is killed; the broker replaces it."""

    broker: KorvetProcess
    random: Random = field(factory=Random)

    def begin(self) -> None:
        os.kill(self.random.choice(self.broker.workers), signal.SIGKILL)

    def end(self) -> None: ...


@define
class PauseWorker(Fault):
    """A process of a broker that has several is stopped with SIGSTOP until the end."""

    broker: KorvetProcess
    random: Random = field(factory=Random)
    paused: int = 0

    def begin(self) -> None:
        self.paused = self.random.choice(self.broker.workers)
        os.kill(self.paused, signal.SIGSTOP)

    def end(self) -> None:
        os.kill(self.paused, signal.SIGCONT)


@frozen
class KillServer(Fault):
    """A Redis server whose writes are on disk is killed, and started again at the end."""

    server: RedisServer

    def begin(self) -> None:
        self.server.kill()

    def end(self) -> None:
        self.server.start()


@frozen
class PauseServer(Fault):
    """A Redis server is stopped with SIGSTOP until the end."""

    server: RedisServer

    def begin(self) -> None:
        self.server.pause()

    def end(self) -> None:
        self.server.resume()


@frozen
class Cut(Fault):
    """Nothing passes a proxy until the end."""

    proxy: Proxy

    def begin(self) -> None:
        self.proxy.cut()

    def end(self) -> None:
        self.proxy.heal()


@define
class PausePrimary(Fault):
    """The primary is stopped with SIGSTOP until the end; the Sentinels may promote another server meanwhile."""

    set: SentinelSet
    paused: RedisServer | None = None

    def begin(self) -> None:
        self.paused = self.set.primary
        self.paused.pause()

    def end(self) -> None:
        assert self.paused is not None
        self.paused.resume()
        self.set.settle()


@define
class KillPrimary(Fault):
    """The primary is killed, another server is promoted, and the killed one becomes a replica at the end."""

    set: SentinelSet
    killed: RedisServer | None = None

    def begin(self) -> None:
        self.killed = self.set.primary
        self.killed.kill()
        self.set.await_other_than(self.killed)

    def end(self) -> None:
        assert self.killed is not None
        self.set.revive(self.killed)
        self.set.settle()


@frozen
class FailOver(Fault):
    """A Sentinel promotes a replica by command."""

    set: SentinelSet

    def begin(self) -> None:
        self.set.fail_over()

    def end(self) -> None:
        self.set.settle()


@define
class PauseReplica(Fault):
    """A replica is stopped with SIGSTOP until the end."""

    set: SentinelSet
    paused: RedisServer | None = None

    def begin(self) -> None:
        self.paused = self.set.replicas[0]
        self.paused.pause()

    def end(self) -> None:
        assert self.paused is not None
        self.paused.resume()
        self.set.settle()


@frozen
class PauseSentinel(Fault):
    """A Sentinel is stopped with SIGSTOP until the end."""

    set: SentinelSet

    def begin(self) -> None:
        self._send(signal.SIGSTOP)

    def end(self) -> None:
        self._send(signal.SIGCONT)
        self.set.settle()

    def _send(self, number: signal.Signals) -> None:
        process = self.set.sentinels[0].process
        assert process is not None
        process.send_signal(number)


@define
class CutFromOthers(Fault):
    """Nothing reaches a server of the set until the end, over connections old and new.

    A replica and a Sentinel still reach the others.
    """

    set: SentinelSet
    _proxy: Proxy | None = None

    @abstractmethod
    def _chosen(self) -> RedisServer | Sentinel: ...

    def begin(self) -> None:
        self._proxy = self.set.proxy_of(self._chosen())
        self._proxy.cut()

    def end(self) -> None:
        assert self._proxy is not None
        self._proxy.heal()
        self.set.settle()


@define
class CutPrimary(CutFromOthers):
    """The primary is cut off; the Sentinels may promote another server meanwhile."""

    def _chosen(self) -> RedisServer:
        return self.set.primary


@define
class CutReplica(CutFromOthers):
    """A replica is cut off from brokers and Sentinels. It receives and confirms what the primary writes."""

    def _chosen(self) -> RedisServer:
        return self.set.replicas[0]


@define
class CutSentinel(CutFromOthers):
    """A Sentinel is cut off from brokers and other Sentinels. It may fail over with their votes."""

    def _chosen(self) -> Sentinel:
        return self.set.sentinels[0]


@define
class Nemesis:
    """Injects faults. The same seed and faults give the same choices."""

    seed: int
    faults: Sequence[Fault]
    every_s: float = 5.0
    longest_s: float = 4.0
    done: list[str] = field(factory=list)

    def run(self, for_s: float) -> None:
        """Inject a fault every `every_s` seconds, and repair each of them before the next one."""
        random = Random(self.seed)
        until = time.monotonic() + for_s
        pause = threading.Event()  # never set
        while time.monotonic() < until:
            began = time.monotonic()
            fault = random.choice(self.faults)
            lasts_s = random.uniform(0.2, self.longest_s)
            self.done.append(f"{describe(fault)} at {began:.1f} for {lasts_s:.1f} s")
            fault.begin()
            try:
                pause.wait(lasts_s)
            finally:
                fault.end()
            pause.wait(max(0.0, began + self.every_s - time.monotonic()))


def describe(fault: Fault) -> str:
    """Return the fault in words, with the process that it is about."""
    for name in ("broker", "server", "proxy"):
        if (about := getattr(fault, name, None)) is not None:
            return f"{type(fault).__name__} {about.port or getattr(about, 'kind', '')}"
    return type(fault).__name__
