"""Run Apache Kafka from jars of Maven: one node that is broker and controller, and its command line tools.

`pom.xml` names the jars. Maven's client copies them once into the user's cache folder (`$XDG_CACHE_HOME/korvet`, or
`~/.cache/korvet`; about 90 jars, 130 MB). This requires Java 17 and `mvn`.

Kafka runs with its documented defaults, except for settings that one node on loopback cannot have (replicas), and those
that cost a test seconds (50 partitions of `__consumer_offsets`). Any setting can be given.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define, field

from tests.servers import free_port, parent_death_prefix
from tests.support.logged import LoggedProcess, NotLoggedError

POM = Path(__file__).with_name("pom.xml")
FETCH_LIMIT_S = 900.0
START_LIMIT_S = 90.0
STOP_LIMIT_S = 30.0
TOOL_LIMIT_S = 120.0
#: Options for a fast start, where performance is not measured.
QUICK = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
QUICK_BROKER = ("-Xmx768m", "-XX:TieredStopAtLevel=1")
# Size, ApiVersions, version 0, correlation id 0, no client id.
API_VERSIONS_REQUEST = bytes.fromhex("0000000a 0012 0000 00000000 ffff")
STARTED = re.compile(r"KafkaRaftServer nodeId=\d+\] Kafka Server started")

#: Kafka's scripts (`bin/kafka-topics.sh`) and their classes.
TOOLS: Mapping[str, str] = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


class KafkaUnavailable(Exception):  # noqa: N818  the message names what is missing
    """Apache Kafka cannot run on this machine, or did not start; the message has the reason."""


def cache_folder() -> Path:
    """Return the folder that keeps the jars between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "korvet"


def jars(pom: Path = POM) -> Path:
    """Return the folder with the jars of a pom. The first call downloads them with Maven, which takes a minute.

    Each version of a pom has its own folder. Raises KafkaUnavailable.
    """
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"jars-{digest}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("Apache Kafka's jars come through Maven: mvn is not on the search path")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary) / "jars"
        done = subprocess.run(
            [maven, "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={target}"],
            capture_output=True,
            text=True,
            timeout=FETCH_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise KafkaUnavailable(f"Maven did not get Apache Kafka's jars:\n{done.stdout}{done.stderr}")
        # Another process may have created the folder meanwhile. A folder is complete once it has its final name.
        if not folder.is_dir():
            target.rename(folder)
    return folder


def java(*arguments: str | Path, classes: Path | None = None, machine: Sequence[str] = QUICK) -> list[str]:
    """Return the command that runs a class from the jars; `arguments` begin with the class's name.

    `classes` is a folder of jars, by default Apache Kafka's (see `jars`). `machine` are options of the Java virtual
    machine.
    """
    program = shutil.which("java")
    if program is None:
        raise KafkaUnavailable("Apache Kafka needs Java 17 or newer: java is not on the search path")
    return [
        program,
        *machine,
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        "-cp",
        f"{classes or jars()}/*",
        *(str(argument) for argument in arguments),
    ]


def java_tool(
    name: str,
    *arguments: str | Path,
    given: str = "",
    classes: Path | None = None,
    machine: Sequence[str] = QUICK,
    limit_s: float = TOOL_LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command line tools to its end, with `given` on its standard input.

    `name` is the name of a script (`kafka-topics`, see TOOLS) or of a class. The caller checks `returncode`, `stdout`
    and `stderr` (the log). `classes` and `machine` are those of `java`. Raises subprocess.TimeoutExpired after
    `limit_s`, two minutes by default.
    """
    return subprocess.run(
        java(TOOLS.get(name, name), *arguments, classes=classes, machine=machine),
        input=given,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@define
class ApacheKafka(LoggedProcess):
    """One node, in its own folder. `settings` are lines of server.properties that override the defaults here.

    `machine` are options of the Java virtual machine. `listeners` maps names of additional listeners to their security
    protocols; `ports` has their ports. `users` have passwords for SCRAM. A node that `joins` another one needs
    another `node.id`.

    As a context manager, it starts on entry; on exit the process has ended and its data is deleted.
    """

    settings: Mapping[str, str] = field(factory=dict)
    machine: Sequence[str] = QUICK_BROKER
    listeners: Mapping[str, str] = field(factory=dict)
    users: Mapping[str, str] = field(factory=dict, repr=False)
    joins: ApacheKafka | None = None  # the node whose controller this one, a broker only, uses
    port: int = 0
    controller_port: int = 0
    ports: dict[str, int] = field(factory=dict, init=False)
    started: float = 0.0  # `time.perf_counter` when the process was started
    _folder: Path | None = field(default=None, init=False)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start on free ports, and return once ApiVersions is answered. Raises KafkaUnavailable with the log."""
        # Kafka's controller cannot listen on port 0, so ports are chosen first. If another process takes one meanwhile,
        # try others.
        for _attempt in range(5):
            self._folder = Path(tempfile.mkdtemp(prefix="korvet-kafka-"))
            try:
                self._start()
                return
            except BaseException:
                taken = any("Address already in use" in line for line in self.log)
                self.stop()
                if not taken:
                    raise
        raise KafkaUnavailable("no two loopback ports stayed free for long enough to start Apache Kafka")

    def stop(self) -> None:
        """End the process (SIGTERM, then SIGKILL) and delete its folder."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def log_tail(self, lines: int = 200) -> str:
        """Return the end of the process's log, for error messages."""
        with self._changed:
            return "\n".join(self.log[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        properties = self._write_properties()
        self._format(properties)
        self.started = time.perf_counter()
        self.launch(
            [*parent_death_prefix(), *java("kafka.Kafka", properties, machine=self.machine)], cwd=self._folder
        )
        try:
            self.wait_for_log(STARTED, limit_s=START_LIMIT_S)
        except NotLoggedError as error:
            raise KafkaUnavailable(f"Apache Kafka did not start: {error}") from None
        if not answers_api_versions(self.port):
            raise KafkaUnavailable(f"Apache Kafka does not answer on port {self.port}:\n{self.log_tail()}")

    def _write_properties(self) -> Path:
        assert self._folder is not None
        self.port, self.controller_port = free_port(), free_port()
        controller = self.controller_port if self.joins is None else self.joins.controller_port
        self.ports = {name: free_port() for name in self.listeners}
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **self.listeners}
        served = ",".join(
            f"{name}://127.0.0.1:{port}" for name, port in {"PLAINTEXT": self.port, **self.ports}.items()
        )
        settings = {
            "process.roles": "broker,controller" if self.joins is None else "broker",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"{served},CONTROLLER://127.0.0.1:{controller}" if self.joins is None else served,
            "advertised.listeners": served,
            "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.settings,
        }
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return properties

    def _format(self, properties: Path) -> None:
        cluster_id = "a29ydmV0LWNvbmZvcm1hbg"  # 16 bytes in URL-safe base64, as Kafka makes them
        users = [
            f"--add-scram={mechanism}=[name={name},password={password}]"
            for name, password in self.users.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        standalone = ["--standalone"] if self.joins is None else []
        done = java_tool("kafka-storage", "format", *standalone, "-t", cluster_id, "-c", properties, *users)
        if done.returncode:
            raise KafkaUnavailable(f"Apache Kafka's folder was not formatted:\n{done.stdout}{done.stderr}")


def answers_api_versions(port: int) -> bool:
    """Return True if a broker on that port answers ApiVersions without an error within ten seconds."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            answer = b""
            while len(answer) < 10 and (data := connection.recv(4096)):
                answer += data
    except OSError:
        return False
    return answer[4:10] == bytes(6)  # after the size: the correlation id and the error code


def main(arguments: Sequence[str]) -> int:
    """Run one of Kafka's tools: `python -m conformance.apache_kafka kafka-topics --bootstrap-server …`."""
    name, *rest = arguments
    return subprocess.run(java(TOOLS.get(name, name), *rest), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
