"""Read from the brokers what a round needs: the bounds and end offsets of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from attrs import frozen

from korvet.client import LATEST, Client, Topic, TopicPartition
from korvet.client.isolation import READ_COMMITTED
from korvet.pipeline.archive_plan import Bounds, bounds_of_several
from korvet.protocol.errors import KafkaError, NetworkException, RequestTimedOut

Ends = dict[int, int]


@frozen
class Bounded:
    """The bounds of topics' partitions, and the errors of topics that have none."""

    bounds: dict[str, dict[int, Bounds]]
    errors: dict[str, KafkaError]


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


async def bounds_of_topics(client: Client, topics: Iterable[Topic], ends: Mapping[str, Ends]) -> Bounded:
    """Return the bounds of all partitions of the topics. `ends` are the end offsets that were read in this round."""
    topics = list(topics)
    if len(topics) > 1:
        with suppress(KafkaError):
            return Bounded(await bounds_of_several(client, topics, ends), {})
    made = Bounded({}, {})
    for topic in topics:  # one topic must not hold up the others
        try:
            made.bounds.update(await bounds_of_several(client, [topic], ends))
        except KafkaError as error:
            made.errors[topic.name] = error
    return made
