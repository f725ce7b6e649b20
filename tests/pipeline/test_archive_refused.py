"""An archive that brokers do not let in, or not everywhere; Apache Kafka's own words are in the conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.client import Client
from korvet.client.authentication import NotAuthenticated
from korvet.client.tls import TlsRefused
from korvet.pipeline.archive import Archive
from korvet.protocol.errors import (
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    UnsupportedSaslMechanism,
)
from tests.lake.replay import rows_of
from tests.pipeline.archiving import archive_of, archived, values
from tests.pipeline.support import Cluster

REFUSALS = [NotAuthenticated("no"), TlsRefused("no"), UnsupportedSaslMechanism("no")]


@pytest.mark.parametrize("every_s", [None, 0.01], ids=["once", "every"])
@pytest.mark.parametrize("error", REFUSALS, ids=["login", "TLS", "mechanism"])
def test_archiver_does_not_retry_after_a_refused_first_connection(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: KafkaError, every_s: float | None
) -> None:
    attempts = []

    async def refused(_: Archive) -> None:
        attempts.append(1)
        raise error

    monkeypatch.setattr(Archive, "_describe", refused)
    with pytest.raises(type(error)):
        archive_of("127.0.0.1:1", topic, tmp_path, every_s=every_s).run()

    assert [1] == attempts


def test_archiver_retries_after_a_refusal_once_it_was_authenticated(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create(topic)
    memory.produce(topic, values(3))
    archive = archive_of(memory.bootstrap_servers, topic, tmp_path, every_s=0.01)
    describe, rounds = Archive._describe, iter(range(10))

    async def refused_in_between(self: Archive) -> Any:
        number = next(rounds)
        if number == 3:
            archive.stop()
        if number in (1, 2):
            raise REFUSALS[0]
        return await describe(self)

    monkeypatch.setattr(Archive, "_describe", refused_in_between)
    archive.run()

    assert 4 == next(rounds)
    assert 3 == len(rows_of(tmp_path / topic))


def test_group_authorization_failure_is_logged_once(
    memory: Cluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refused(*_: object) -> None:
        raise GroupAuthorizationFailed("group korvet-lake: no")

    monkeypatch.setattr(Client, "commit", refused)
    memory.create(topic)
    archive = archive_of(memory.bootstrap_servers, topic, tmp_path)
    for _ in range(3):
        memory.produce(topic, values(5))
        archive._ends.clear()
        archive.round()

    assert 15 == len(rows_of(tmp_path / topic))
    assert ["tools will not show how far the archive is: group korvet-lake: no"] == caplog.messages


def test_unauthorized_topic_is_reported_and_other_topics_are_archived(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = Client.topic

    async def refused(client: Client, name: str) -> Any:
        if name == "secret":
            raise TopicAuthorizationFailed("secret: no")
        return await describe(client, name)

    monkeypatch.setattr(Client, "topic", refused)
    memory.create(topic)
    memory.produce(topic, values(5))
    done = archived(memory.bootstrap_servers, f"{topic},secret", tmp_path)

    assert (5, "") == (done.progress[topic].records, done.progress[topic].error)
    assert ("secret: no", False) == (done.progress["secret"].error, done.progress["secret"].may_pass)
