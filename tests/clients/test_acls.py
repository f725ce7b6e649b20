"""A producer and a consumer group with the rights that docs/security.md gives them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.processes import KorvetProcess

SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
LIMIT_S = 30.0

# One broker serves all tests of this module.
pytestmark = pytest.mark.xdist_group("test_acls")
TOPIC, GROUP = "orders", "billing"


@frozen
class Secured:
    """A broker with an authorizer. The password of each user is the user's name."""

    bootstrap_servers: str
    folder: Path

    def properties(self, user: str) -> Path:
        """Return the file of a user's client settings, as Java clients read it."""
        file = self.folder / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{user}";\nbootstrap.servers={self.bootstrap_servers}\n'
        )
        return file

    def client(self, user: str) -> dict[str, str]:
        """Return a user's settings of librdkafka."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": user,
        }

    def delivery_error(self, user: str) -> KafkaError | None:
        """Return the error of a record that the user produces to the topic."""
        reported: list[KafkaError | None] = []
        producer = Producer(self.client(user))
        producer.produce(TOPIC, b"value", on_delivery=lambda error, _: reported.append(error))
        assert 0 == producer.flush(LIMIT_S)
        (error,) = reported
        return error

    def first_message(self, user: str, group: str) -> Message | None:
        """Return the first message or error of a consumer in the group."""
        consumer = Consumer({**self.client(user), "group.id": group, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([TOPIC])
            return consumer.poll(LIMIT_S)
        finally:
            consumer.close()


def korvet(*arguments: str | Path, password: str = "") -> None:
    subprocess.run(
        [sys.executable, "-m", "korvet", *arguments],
        env=os.environ | {"KORVET_PASSWORD": password},
        check=True,
        timeout=LIMIT_S,
    )


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    folder = Path(tempfile.mkdtemp(prefix="ka-"))
    storage = f"embedded:{folder / 'data'}"
    try:
        korvet("users", "add", "admin", "--storage", storage, password="admin")
        with KorvetProcess(storage, SETTINGS) as process:
            broker = Secured(process.bootstrap_servers, folder)
            admin = ("--command-config", broker.properties("admin"))
            for user in ("shop", "billing"):
                korvet("users", "add", user, *admin, password=user)
            acls = ("acls", "add", "--topic", TOPIC, *admin)
            korvet(*acls, "--allow-principal", "User:shop", "--producer")
            korvet(*acls, "--allow-principal", "User:billing", "--consumer", "--group", GROUP)
            yield broker
    finally:
        shutil.rmtree(folder)


def test_each_user_may_do_what_the_acls_allow(secured: Secured) -> None:
    assert secured.delivery_error("shop") is None
    message = secured.first_message("billing", GROUP)

    assert message is not None
    assert (None, b"value") == (message.error(), message.value())


def test_operations_without_an_acl_are_refused(secured: Secured) -> None:
    assert secured.delivery_error("shop") is None
    refused = secured.delivery_error("billing")
    other_group = secured.first_message("billing", "another")
    reader = secured.first_message("shop", GROUP)

    assert refused is not None
    assert KafkaError.TOPIC_AUTHORIZATION_FAILED == refused.code()
    assert other_group is not None
    assert KafkaError.GROUP_AUTHORIZATION_FAILED == other_group.error().code()
    assert reader is not None
    assert KafkaError.GROUP_AUTHORIZATION_FAILED == reader.error().code()
