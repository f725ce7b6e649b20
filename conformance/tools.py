"""Compare the output of Kafka's command line tools on korvet and on Apache Kafka.

Tools of 4.4, 4.3 and 3.9 run by their main methods, as their scripts run them (`java/Tools.java`). All brokers get the
same steps. Status and output are compared after host names, ids and times were replaced. A step that korvet refuses
has the reason.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define, field, frozen

from conformance.apache_kafka import TOOLS, jars
from conformance.java_client import POMS, compiled
from conformance.part import Result, Target, program
from conformance.tools_steps import (
    FILES,
    MEMBER_STEPS,
    SHARE_MEMBER_STEPS,
    STEPS,
    Step,
    everything,
    ordered,
    settings,
)

MEMBER_LIMIT_S = 60.0
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t"}
UNESCAPES = {escaped: plain for plain, escaped in ESCAPES.items()}


@frozen
class Answer:
    """The status and output of a tool."""

    status: int
    output: str
    errors: str


@define
class Toolbox:
    """A process that runs tools one after another. As a context manager, it ends the process on exit."""

    class_path: str
    release: str
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def run(self, tool: str, *arguments: str, given: str = "") -> Answer:
        """Run a tool, by its script's name, to its end; `given` is its standard input."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the toolbox has not been entered")
        classes = {**TOOLS, **MORE_TOOLS, **CLASSES[self.release]}
        parts = [classes[tool], given, *arguments]
        process.stdin.write("\t".join(map(escaped, parts)) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().rstrip("\n").split("\t")
        if len(answer) != 3:
            raise RuntimeError(f"{tool} ended the process that ran it")
        status, output, errors = map(unescaped, answer)
        return Answer(int(status), output, errors)

    def step(self, step: Step, names: Mapping[str, str]) -> Answer:
        """Run a step against the broker in `names`."""
        arguments = [argument.format(**names) for argument in step.arguments]
        if "{broker}" not in " ".join(step.arguments):
            arguments += ["--bootstrap-server", names["broker"]]
        return self.run(step.tool, *arguments, given=step.given)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [
                *(
                    program("java", "Kafka's tools need Java 17 or newer"),
                    "-Xmx256m",
                    "-XX:TieredStopAtLevel=1",
                ),
                *("-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", self.class_path, "Tools"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate()


def escaped(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)


def unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: UNESCAPES.get(found[0], found[0]), text)


#: Classes that earlier releases have in other packages.
CLASSES: Mapping[str, Mapping[str, str]] = {
    "4.4": {},
    "4.3": {"kafka-configs": "kafka.admin.ConfigCommand"},
    "3.9": {
        "kafka-configs": "kafka.admin.ConfigCommand",
        "kafka-acls": "kafka.admin.AclCommand",
        "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
        "kafka-console-producer": "kafka.tools.ConsoleProducer",
    },
}
MORE_TOOLS = {
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
#: Patterns for values that differ from run to run, or between brokers, and their replacements.
REPLACED: Sequence[tuple[str, str]] = (
    (r"127\.0\.0\.1[: ]\d+", "ADDRESS"),
    (r"TopicId: \S+", "TopicId: ID"),
    (r"(console-consumer)-[-\w]+", r"\1-ID"),
    (r"\n[^\n]*\(KIP-848\) is production-ready![^\n]*", ""),
    (r"\n(?:null|Tools\$Ended|\tat [^\n]*|Caused by: [^\n]*)(?=\n)", ""),
    (r"[ \t]+", " "),
    (r"-{2,}", ""),
    (r" ?\n\s*", "\n"),
)


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every step with the tools of each release on all brokers concurrently; compare with Apache Kafka's output."""
    for release, pom in POMS.items():
        steps = [step for step in (*STEPS, *MEMBER_STEPS, *SHARE_MEMBER_STEPS) if step.is_for(release)]
        with tempfile.TemporaryDirectory(prefix="korvet-tools-") as folder:
            class_path = compiled(Path(folder), jars(pom))
            script = Script(release, class_path, Path(folder))
            with ThreadPoolExecutor(len(targets)) as pool:
                answers = dict(
                    zip((each.name for each in targets), pool.map(script.play, targets), strict=True)
                )
        control = next(target for target in targets if target.is_kafka)
        for target in targets:
            for step, wanted, got in zip(steps, answers[control.name], answers[target.name], strict=True):
                yield Result(f"{release} {command_line(step)}", target.name, fault(step, target, wanted, got))


@frozen
class Script:
    """The steps for the tools of one release."""

    release: str
    class_path: str
    folder: Path

    @property
    def _suffix(self) -> str:
        return self.release.replace(".", "-")  # a topic with a period in its name makes the tools warn

    def play(self, target: Target) -> list[Answer]:
        """Run every step on one broker, then the steps that require a group member."""
        names = {"topic": f"tools-{self._suffix}", "group": f"tools-group-{self._suffix}"}
        names["share"] = f"tools-share-{self._suffix}"
        names |= {"broker": target.bootstrap_servers, "folder": str(self.folder)}
        for name, content in FILES.items():
            (self.folder / name).write_text(content.format(**names))
        with Toolbox(self.class_path, self.release) as tools:
            answers = [tools.step(step, names) for step in STEPS if step.is_for(self.release)]
            names["topic"] = f"tools-member-{self._suffix}"
            answers += self._beside_a_member(
                tools,
                names,
                Step("kafka-console-consumer", "--topic {topic} --group {group} --max-messages 1"),
                Step("kafka-consumer-groups", "--describe --group {group} --state"),
                MEMBER_STEPS,
            )
            if any(step.is_for(self.release) for step in SHARE_MEMBER_STEPS):
                names["topic"] = names["share"] = f"tools-share-member-{self._suffix}"
                answers += self._beside_a_member(
                    tools,
                    names,
                    Step("kafka-console-share-consumer", "--topic {share} --group {share} --max-messages 1"),
                    Step("kafka-share-groups", "--describe --group {share} --members"),
                    SHARE_MEMBER_STEPS,
                )
            return answers

    def _beside_a_member(
        self, tools: Toolbox, names: Mapping[str, str], reading: Step, shown: Step, steps: Sequence[Step]
    ) -> list[Answer]:
        """Run steps while a console consumer is a member of the group: `shown` has its state or its partitions."""
        tools.step(Step("kafka-topics", "--create --topic {topic} --partitions 2"), names)
        stopping = Step("kafka-console-producer", "--topic {topic}", given="end\n")
        with Toolbox(self.class_path, self.release) as other, ThreadPoolExecutor(1) as pool:
            member = pool.submit(other.step, reading, names)
            try:
                limit = time.monotonic() + MEMBER_LIMIT_S
                while not re.search(r"Stable|\S+:0", tools.step(shown, names).output):
                    if time.monotonic() > limit:
                        raise RuntimeError(f"{reading.tool} has not become a member on {names['broker']}")
                return [tools.step(step, names) for step in steps if step.is_for(self.release)]
            finally:
                while not member.done():  # it starts at the end of the topic: one of these comes later
                    tools.step(stopping, names)


def fault(step: Step, target: Target, wanted: Answer, got: Answer) -> str:
    """Describe the fault of an answer; empty if it is like Apache Kafka's, or refused as expected."""
    if step.refused and not target.is_kafka:
        if got.status == 1 and step.refused in got.output + got.errors:
            return ""
        return f"expected to be refused by {step.refused!r}: {got}"
    if got.status != step.status:
        return f"it ended with {got.status}: {got.output}{got.errors}"
    mask = step.has_offsets and not target.dense
    expected, actual = comparable(step, wanted, mask=mask), comparable(step, got, mask=mask)
    if not expected and not actual:
        return "" if step.shown in (everything, ordered, settings) else "there is nothing to compare"
    return "" if expected == actual else f"expected {expected!r}, got {actual!r}"


def comparable(step: Step, answer: Answer, *, mask: bool) -> str:
    """Return an answer without values that may differ; with `mask`, also without numbers and columns."""
    text = step.shown(f"\n{answer.output}\n{answer.errors}\n")
    text = f"\n{text}\n"
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return re.sub(r"\s", "", re.sub(r"\d+", "N", text)) if mask else text.strip()


def command_line(step: Step) -> str:
    return " ".join([step.tool, *step.arguments])
