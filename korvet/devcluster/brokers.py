"""The brokers of a development cluster: `korvet serve` processes on one storage URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import trio
from attrs import define, field

from korvet.devcluster.folder import Folder
from korvet.devcluster.processes import Child, ProcessGroup

START_LIMIT_S = 60.0


@define(eq=False)
class Broker:
    """A broker and its address for clients, which is known once it serves."""

    number: int
    child: Child
    address: str = ""

    @property
    def port(self) -> int:
        """The port for clients."""
        return int(self.address.rpartition(":")[2])


@define
class Brokers:
    """Starts brokers."""

    folder: Folder
    group: ProcessGroup
    nursery: trio.Nursery
    storage: str
    settings: Mapping[str, str]
    brokers: list[Broker] = field(factory=list)

    async def start(self, ports: list[int]) -> None:
        """Start a broker on each port concurrently, and return when all of them serve."""
        for number, port in enumerate(ports, 1):
            child = Child(f"broker {number}", f"localhost:{port}", self.folder.broker_log(number))
            self.folder.ready_file(number).unlink(missing_ok=True)
            await self.group.start(
                child, self._command(number, port), self.nursery, {**os.environ, "PYTHONUNBUFFERED": "1"}
            )
            self.brokers.append(Broker(number, child))
        for started in self.brokers:
            await self._wait_ready(started)

    async def _wait_ready(self, started: Broker) -> None:
        file = self.folder.ready_file(started.number)

        async def is_ready() -> bool:
            await trio.lowlevel.checkpoint()
            return file.exists()

        await started.child.wait_ready(is_ready, START_LIMIT_S)
        started.address = started.child.address = file.read_text(encoding="utf-8").strip()

    def _command(self, number: int, port: int) -> list[str]:
        command = [sys.executable, "-m", "korvet", "serve", "--storage", self.storage]
        command += ["--listeners", f"localhost:{port}", "--ready-file", str(self.folder.ready_file(number))]
        for name, value in {"node.id": str(number), **self.settings}.items():
            command += ["--set", f"{name}={value}"]
        return command
