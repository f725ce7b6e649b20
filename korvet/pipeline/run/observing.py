"""Read from the brokers what a round needs: topics, their settings, and end offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from attrs import frozen

from korvet.client import LATEST, Client, Topic, TopicPartition
from korvet.client.administration import topic_settings
from korvet.client.isolation import READ_COMMITTED
from korvet.pipeline.archive_plan import Bounds, bounds_of
from korvet.pipeline.run.policy import DESCRIBED
from korvet.protocol.errors import KafkaError, NetworkException, RequestTimedOut

Ends = dict[int, int]


@frozen
class Bounded:
    """The bounds of topics' partitions, and the errors of topics that have none."""

    bounds: dict[str, dict[int, Bounds]]
    errors: dict[str, KafkaError]


async def settings_of(client: Client, topics: Mapping[str, Topic]) -> dict[str, dict[str, str]]:
    """Return the settings of topics that policies depend on. Raises KafkaError."""
    return await topic_settings(client, [*topics], DESCRIBED)


async def end_offsets(
    client: Client, topics: Iterable[Topic]
) -> tuple[dict[str, Ends], dict[str, KafkaError]]:
    """Return the last stable offsets of all partitions by topic, and the errors of topics.

    Raises KafkaError if no broker answers.
    """
    topics = list(topics)
    if len(topics) > 1:
        with suppress(KafkaError):
            return await _ends(client, topics), {}
    found: dict[str, Ends] = {}
    errors: dict[str, KafkaError] = {}
    for topic in topics:  # one topic must not hold up the others
        try:
            found |= await _ends(client, [topic])
        except (NetworkException, RequestTimedOut):
            raise
        except KafkaError as error:
            errors[topic.name] = error
    return found, errors


async def _ends(client: Client, topics: Iterable[Topic]) -> dict[str, Ends]:
    tps = [TopicPartition(topic.name, each.partition) for topic in topics for each in topic.partitions]
    listed = await client.list_offsets(dict.fromkeys(tps, LATEST), isolation_level=READ_COMMITTED)
    found: dict[str, Ends] = {}
    for tp, offset in listed.items():
        found.setdefault(tp.topic, {})[tp.partition] = offset.offset
    return found


async def bounds_of_topics(client: Client, topics: Iterable[Topic]) -> Bounded:
    """Return the bounds of all partitions of the topics."""
    made = Bounded({}, {})
    for topic in topics:
        try:
            made.bounds[topic.name] = await bounds_of(client, topic)
        except KafkaError as error:
            made.errors[topic.name] = error
    return made
