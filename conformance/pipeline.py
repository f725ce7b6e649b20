"""The data source and the archive against an Apache Kafka that requires TLS and logins, and grants few permissions.

librdkafka creates topics and records through a listener without access control; the pipeline uses the other listeners.
DuckDB reads the archived tables, independently of the archive's code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from attrs import field, frozen
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from conformance.part import Result, Target
from conformance.secured_kafka import MECHANISMS, USERS, SecuredKafka, jaas, secured_kafka
from korvet.client import LATEST, OffsetAndMetadata, open_client, security_of
from korvet.client import TopicPartition as Partition
from korvet.client.lake_tables import reporting_groups, reports_in
from korvet.pipeline.session import spark_session
from korvet.protocol.errors import GroupAuthorizationFailed, TopicAuthorizationFailed
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.lake.iceberg_reading import reading, rows_of_iceberg
from tests.lake.replay import rows_of

TARGET = "Apache Kafka, secured"
COMMAND_LIMIT_S = 300
CLEANING_LIMIT_S = 90.0
FIRST_TIME_MS = 1_700_000_000_000
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "max.compaction.lag.ms": "100",
}
#: Wrong logins: the listener, the change to a correct login, and the error message.
REFUSED: Mapping[str, tuple[str, dict[str, str], str]] = {
    "a wrong password": (
        "SASL_SSL",
        {"sasl.jaas.config": jaas("PLAIN", "alice", "guessed")},
        "does not accept the login (PLAIN): Authentication failed: Invalid username or password",
    ),
    "a wrong password, by SCRAM": (
        "SASL_SSL",
        {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": jaas("SCRAM-SHA-256", "alice", "guessed"),
        },
        "does not accept the login (SCRAM-SHA-256)",
    ),
    "TLS without the login": ("SASL_SSL", {"security.protocol": "SSL"}, "requires another security.protocol"),
    "a login without TLS": (
        "SASL_SSL",
        {"security.protocol": "SASL_PLAINTEXT"},
        "requires another security.protocol",
    ),
    "neither": ("SASL_PLAINTEXT", {"security.protocol": "PLAINTEXT"}, "requires another security.protocol"),
    "TLS on a plaintext listener": ("SASL_PLAINTEXT", {}, "requires another security.protocol"),
    "no client certificate": ("MUTUAL", {"security.protocol": "SSL"}, "requires one"),
    "an untrusted authority": ("SASL_SSL", {"ssl.truststore.location": ""}, "its certificate is not trusted"),
}


def run(_targets: Sequence[Target]) -> Iterator[Result]:
    """Run every check, one after another, on this Kafka; the shared targets are not used."""
    with secured_kafka() as kafka, TemporaryDirectory(prefix="korvet-pipeline-") as folder:
        settings = {"spark.sql.shuffle.partitions": "2"}
        spark = spark_session("korvet conformance", master="local[2]", settings=settings, quick_java=True)
        try:
            for name, check in Checks(kafka, spark, Path(folder)).all():
                yield Result(name, TARGET, fault_of(check))
        finally:
            spark.stop()


def fault_of(check: Callable[[], None]) -> str:
    """Run a check. Return its error in one line, or an empty string."""
    try:
        check()
    except Exception as error:  # noqa: BLE001  any exception is a failure of the check
        return " ".join(f"{type(error).__name__}: {error}".split())[:2000]
    return ""


@frozen
class Checks:
    """The checks; the first ones create topics that later ones read."""

    kafka: SecuredKafka
    spark: SparkSession
    folder: Path
    admin: AdminClient = field(init=False)

    @admin.default
    def _connected(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka.kafka.bootstrap_servers})

    def all(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield each check with its name; the order matters."""
        for mechanism in MECHANISMS:
            yield f"{mechanism} over TLS and without", partial(self.logs_in, mechanism)
        yield "a client certificate is accepted", self.mutual
        for name, (listener, change, said) in REFUSED.items():
            yield f"{name} is refused in one line", partial(self.is_refused, listener, change, said)
        yield "rows are written and read in batches", self.batch
        yield "a stream reads, another writes", self.streams
        yield "a user with READ on one topic reads it and is refused others", self.one_topic_only
        yield "a user with READ on one topic sees only that topic", self.visible_topic_only
        yield "a log that ends in an aborted transaction", self.transactions
        yield "a compacted topic, with gaps", self.compacted
        yield "timestamps of the producer and of the broker", self.times
        yield "all topics are archived without lag", self.archived
        yield "a user with READ on one topic archives it", self.archived_by_reader
        yield "archived and live records are queried together", self.queried
        yield "a run keeps the tables of all topics up to date", self.kept

    # --- Connecting ---------------------------------------------------------------------------------------

    def logs_in(self, mechanism: str) -> None:
        for tls in (True, False):
            listener = "SASL_SSL" if tls else "SASL_PLAINTEXT"
            self.connect(listener, self.kafka.login("alice", mechanism, tls=tls))

    def mutual(self) -> None:
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.kafka.client)}
        login = self.kafka.login("alice", "PLAIN")
        self.connect("MUTUAL", {**login, **own, "security.protocol": "SSL"})

    def is_refused(self, listener: str, change: Mapping[str, str], said: str) -> None:
        try:
            self.connect(listener, {**self.kafka.login("alice", "PLAIN"), **change})
        except Exception as error:  # noqa: BLE001  it is looked at
            expect_in(said, str(error))
            without_secrets(str(error))
        else:
            raise AssertionError("it was let in")

    def connect(self, listener: str, settings: Mapping[str, str]) -> None:
        async def main() -> None:
            security = security_of(settings)
            async with open_client(self.kafka.at(listener), security=security, retry_timeout_s=0) as client:
                await client.topics()

        trio.run(main)

    # --- The data source ----------------------------------------------------------------------------------

    def batch(self) -> None:
        self.create("orders", partitions=3)
        rows = [(str(number), str(number * number), [("origin", b"here")]) for number in range(1000)]
        schema = "key string, value string, headers array<struct<key: string, value: binary>>"
        self.save(self.spark.createDataFrame(rows, schema), "orders", includeHeaders="true")
        found = self.read("orders", includeHeaders="true").collect()

        expect(sorted(rows), sorted((text(row.key), text(row.value), pairs(row.headers)) for row in found))
        expect(3, len({row.partition for row in found}))

    def streams(self) -> None:
        self.create("copied")
        for _ in range(2):
            query = (
                self.spark.readStream.format("korvet")
                .options(**self.options("alice", "SCRAM-SHA-512"))
                .options(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="400")
                .load()
                .select("key", "value")
                .writeStream.format("korvet")
                .options(**self.options("alice", "SCRAM-SHA-256"))
                .option("topic", "copied")
                .option("checkpointLocation", str(self.folder / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        found = self.read("copied").collect()

        expect([str(number) for number in range(1000)], sorted((text(row.key) for row in found), key=int))

    def one_topic_only(self) -> None:
        self.create("secret")
        self.allow("reader", "orders", AclOperation.READ)
        options = self.options("reader", "SCRAM-SHA-512")

        def count(**chosen: str) -> int:
            return self.spark.read.format("korvet").options(**options, **chosen).load().count()

        expect(1000, count(subscribe="orders"))
        expect(1000, count(subscribePattern=".*"))
        self.fails("secret: Not authorised for the topic", partial(count, subscribe="secret"))
        self.fails(
            "Not authorised for the topic",
            lambda: self.save(self.spark.createDataFrame([("1",)], "value string"), "orders", user="reader"),
        )

    def visible_topic_only(self) -> None:
        """Expect responses to Metadata, DescribeCluster and ListOffsets; and refusals of what was not granted."""
        orders, secret = (Partition(topic, 0) for topic in ("orders", "secret"))

        async def main() -> None:
            security = security_of(self.kafka.login("reader", "SCRAM-SHA-256"))
            async with open_client(self.kafka.at("SASL_SSL"), security=security) as client:
                expect(["orders"], list(await client.topics()))
                expect([orders], list(await client.list_offsets({orders: LATEST})))
                answer = await client.request(
                    DescribeClusterRequest(include_cluster_authorized_operations=False),
                    DescribeClusterResponse,
                )
                expect((0, 1), (answer.error_code, len(answer.brokers)))
                for refused, ask in (
                    (TopicAuthorizationFailed, partial(client.list_offsets, {secret: LATEST})),
                    (TopicAuthorizationFailed, partial(client.create_topic, "mine")),
                    (
                        GroupAuthorizationFailed,
                        partial(client.commit, "korvet-lake", {orders: OffsetAndMetadata(0)}),
                    ),
                ):
                    try:
                        await ask()
                    except refused:
                        continue
                    raise AssertionError(f"it was allowed; expected is {refused.__name__}")

        trio.run(main)

    def transactions(self) -> None:
        """Read two committed transactions, an aborted one between them and another at the end."""
        self.create("paid")
        producer = Producer({**self.librdkafka(), "transactional.id": "conformance"})
        producer.init_transactions(30)
        for number, ends in enumerate(["commit", "abort", "commit", "abort"]):
            producer.begin_transaction()
            for index in range(100):
                producer.produce("paid", f"{ends} {number} {index}")
            producer.flush(30)  # otherwise records of aborted transactions would never be sent
            producer.commit_transaction(30) if ends == "commit" else producer.abort_transaction(30)
        committed = {f"commit {number} {index}" for number in (0, 2) for index in range(100)}

        expect(400, self.read("paid").count())
        found = self.read("paid", **{"kafka.isolation.level": "read_committed"}).collect()
        expect(sorted(committed), sorted(text(row.value) for row in found))

    def compacted(self) -> None:
        """Overwrite ten keys until the broker has compacted them."""
        self.create("state", COMPACTED)
        producer = Producer(self.librdkafka())
        for number in range(500):
            producer.produce("state", str(number), key=str(number % 10))
            if number % 100 == 99:
                producer.flush(30)
        deadline = time.monotonic() + CLEANING_LIMIT_S
        while len(before := set(self.consumed("state"))) > 400:
            if time.monotonic() > deadline:
                raise AssertionError(f"after {CLEANING_LIMIT_S:g} s nothing was compacted")
            # A new record makes the broker roll a segment; the active segment is never compacted.
            producer.produce("state", "again", key="10")
            producer.flush(30)
            time.sleep(1)
        found = {(row.offset, text(row.value)) for row in self.read("state").collect()}

        expect(set(), set(self.consumed("state")) - found)
        expect(set(), found - before)

    def times(self) -> None:
        self.create("created")
        self.create("appended", {"message.timestamp.type": "LogAppendTime"})
        producer = Producer(self.librdkafka())
        for number in range(10):
            for topic in ("created", "appended"):
                producer.produce(topic, str(number), timestamp=FIRST_TIME_MS + 1000 * number)
        producer.flush(30)
        columns = "offset", "unix_millis(timestamp) as ms", "timestampType as type"
        created = self.read("created").selectExpr(*columns).orderBy("offset").collect()
        appended = self.read("appended").selectExpr(*columns).collect()

        expect(
            [(FIRST_TIME_MS + 1000 * number, 0) for number in range(10)], [(r.ms, r.type) for r in created]
        )
        expect({1}, {row.type for row in appended})
        expect([], [row for row in appended if row.ms < FIRST_TIME_MS + 60_000])
        expect(6, self.read("created", startingTimestamp=str(FIRST_TIME_MS + 3500)).count())

    # --- The archive --------------------------------------------------------------------------------------

    def archived(self) -> None:
        topics = ["appended", "created", "orders", "paid", "state"]
        login = self.properties("alice", "SCRAM-SHA-256")
        result = self.korvet(
            "lake", "archive", "--topics", ",".join(topics), *self.lake(), "--once", "--json", login
        )

        expect([(topic, 0, None) for topic in topics], summary(result))
        for topic in topics:
            rows = rows_of(self.folder / "lake" / topic)
            found = self.read(topic, **{"kafka.isolation.level": "read_committed"})
            expect(
                sorted((row.partition, row.offset, as_bytes(row.value)) for row in found.collect()),
                sorted((row.partition, row.offset, row.value) for row in rows),
            )
        expect(0, self.korvet("lake", "audit", *self.lake(), login).returncode)
        expect(
            {"korvet-lake"}, {group.group_id for group in self.admin.list_consumer_groups().result(30).valid}
        )

    def archived_by_reader(self) -> None:
        login = self.properties("reader", "PLAIN")
        result = self.korvet(
            *("lake", "archive", "--topics", "orders,secret", "--lake", str(self.folder / "one")),
            *("--once", "--json", login),
        )

        refused = "secret: Not authorised for the topic."
        expect([("orders", 0, None), ("secret", 0, refused)], summary(result))
        expect(1, result.returncode)
        expect(1000, len(rows_of(self.folder / "one" / "orders")))
        expect_in(
            "tools will not show how far the archive is: group korvet-lake: Group authoriz", result.stderr
        )

    def queried(self) -> None:
        self.save(self.spark.createDataFrame([("new", "1")], "key string, value string"), "orders")
        sql = "select count(*) as n, count(distinct partition, offset) as d from orders"
        result = self.korvet(
            "lake", "query", sql, *self.lake(), "--json", self.properties("alice", "SCRAM-SHA-512")
        )

        expect([{"n": 1001, "d": 1001}], [json.loads(line) for line in result.stdout.splitlines()])

    def kept(self) -> None:
        """Archive, decode and mirror all topics; read the tables, and the report that the run has committed."""
        self.create("events", partitions=3)
        objects = [(f'{{"id": {number}}}',) for number in range(1000)]
        self.save(self.spark.createDataFrame(objects, "value string"), "events")
        login, file = self.properties("alice", "SCRAM-SHA-256"), self.folder / "lake.toml"
        policies = "[topics.'(orders|paid|state)']\n[topics.events]\ndecode = 'json'\n"
        file.write_text(f"lake = '{self.folder}/kept'\ngroup = 'kept'\ndefaults.iceberg = true\n{policies}")
        for _ in range(2):
            result = self.korvet("lake", "run", "--config", str(file), "--once", "--json", login)
            found = [
                (each["topic"], each["state"], each["lag_offsets"]) for each in json.loads(result.stdout)
            ]
            expect([(name, "current", 0) for name in ("events", "orders", "paid", "state")], found)
            expect(0, result.returncode)
        for topic, *_ in found:
            rows = rows_of(self.folder / "kept" / topic)
            expect(rows, rows_of_iceberg(str(self.folder / "kept" / topic / "_iceberg")))
            committed = self.read(topic, **{"kafka.isolation.level": "read_committed"})
            expect(
                sorted((row.partition, row.offset, as_bytes(row.value)) for row in committed.collect()),
                sorted((row.partition, row.offset, row.value) for row in rows),
            )
        ids = reading(
            str(self.folder / "kept-typed" / "events" / "_iceberg"), "select id from {table} order by id"
        )
        expect([(number,) for number in range(1000)], ids)

        async def reported() -> set[str]:
            security = security_of(self.kafka.login("alice", "SCRAM-SHA-256"))
            async with open_client(self.kafka.at("SASL_SSL"), security=security) as client:
                return {topic for group in await reporting_groups(client) for topic in reports_in(group)}

        expect({topic for topic, *_ in found}, trio.run(reported))

    # --- What they need -----------------------------------------------------------------------------------

    def librdkafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.kafka.bootstrap_servers}

    def create(self, topic: str, settings: Mapping[str, str] | None = None, *, partitions: int = 1) -> None:
        for done in self.admin.create_topics(
            [NewTopic(topic, partitions, config=dict(settings or {}))]
        ).values():
            done.result(30)

    def allow(self, user: str, topic: str, operation: AclOperation) -> None:
        pattern, permission = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        grant = AclBinding(ResourceType.TOPIC, topic, pattern, f"User:{user}", "*", operation, permission)
        for done in self.admin.create_acls([grant]).values():
            done.result(30)

    def options(self, user: str, mechanism: str) -> dict[str, str]:
        """Return options of the data source for a user's login over TLS."""
        login = {"bootstrap.servers": self.kafka.at("SASL_SSL"), **self.kafka.login(user, mechanism)}
        return {f"kafka.{name}": value for name, value in login.items()}

    def read(self, topic: str, **options: str) -> DataFrame:
        login = self.options("alice", "SCRAM-SHA-256")
        return self.spark.read.format("korvet").options(**login, subscribe=topic, **options).load()

    def save(self, frame: DataFrame, topic: str, *, user: str = "alice", **options: str) -> None:
        login = self.options(user, "PLAIN")
        frame.write.format("korvet").options(**login, topic=topic, **options).mode("append").save()

    def fails(self, said: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  it is looked at
            expect_in(said, str(error))
            without_secrets(str(error))
        else:
            raise AssertionError(f"it did not fail; expected was {said!r}")

    def consumed(self, topic: str) -> list[tuple[int, str]]:
        """Return offsets and values of a topic with one partition, as librdkafka reads them."""
        consumer = Consumer({**self.librdkafka(), "group.id": "none", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
            found: list[tuple[int, str]] = []
            while not found or found[-1][0] < end - 1:
                message = consumer.poll(30)
                if message is None or message.error():
                    raise AssertionError(f"nothing to consume: {message and message.error()}")
                found.append((message.offset() or 0, (message.value() or b"").decode()))
            return found
        finally:
            consumer.close()

    def properties(self, user: str, mechanism: str) -> str:
        """Return `--command-config` with a file in the format of Kafka's tools."""
        file = self.folder / f"{user}.properties"
        settings = {"bootstrap.servers": self.kafka.at("SASL_SSL"), **self.kafka.login(user, mechanism)}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return f"--command-config={file}"

    def lake(self) -> tuple[str, str]:
        return "--lake", str(self.folder / "lake")

    def korvet(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a korvet command; its output must not have secrets."""
        done = subprocess.run(
            [sys.executable, "-m", "korvet", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        without_secrets(done.stdout + done.stderr)
        return done


def summary(result: subprocess.CompletedProcess[str]) -> list[tuple[str, int, str | None]]:
    """Return topic, lag and error from the output of `lake archive --json`."""
    try:
        return [(each["topic"], each["lag_offsets"], each["error"]) for each in json.loads(result.stdout)]
    except json.JSONDecodeError:
        raise AssertionError(f"it ended with {result.returncode}: {result.stderr[-1000:]}") from None


def without_secrets(said: str) -> None:
    if found := [name for name, password in USERS.items() if password in said]:
        raise AssertionError(f"the password of {found[0]} is in what was said")


def expect(wanted: object, found: object) -> None:
    if wanted != found:
        raise AssertionError(f"expected {str(wanted)[:500]}, got {str(found)[:500]}")


def expect_in(wanted: str, said: str) -> None:
    if wanted not in said:
        raise AssertionError(f"expected {wanted!r} in {said[-500:]!r}")


def text(data: bytearray | None) -> str:
    return "null" if data is None else bytes(data).decode()


def as_bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def pairs(headers: Sequence[Any]) -> list[tuple[str, bytes]]:
    return [(header.key, bytes(header.value)) for header in headers]
