"""Planning on the driver: the partitions, the starting and ending offsets, and the ranges of a trigger.

Each trigger requests all of this from the broker again. Only offsets are kept between triggers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from korvet.client import Client
from korvet.client.model import EARLIEST, LATEST, Topic, TopicPartition
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Bound,
    Offsets,
    Position,
    SpecificOffsets,
    SpecificTimestamps,
    TopicIds,
    WrongOption,
)
from korvet.pipeline.options import ReadOptions, Subscription
from korvet.pipeline.topic_reading import DataLost, Range, lost
from korvet.protocol.errors import UnknownTopicOrPartition


async def find_partitions(
    client: Client, subscription: Subscription, *, missing_ok: bool = False
) -> tuple[list[TopicPartition], TopicIds]:
    """Return the subscribed partitions that exist, and their topics' IDs.

    Topics of brokers that are too old for topic IDs have none there. Raises UnknownTopicOrPartition for missing topics
    and partitions, unless `missing_ok`: a topic may be deleted while a stream runs.
    """
    topics = await _find_topics(client, subscription, missing_ok=missing_ok)
    topic_ids = {topic.name: topic.topic_id for topic in topics if topic.topic_id.int}
    found = [
        TopicPartition(topic.name, partition.partition) for topic in topics for partition in topic.partitions
    ]
    if not subscription.assigned:
        return found, topic_ids
    missing = set(subscription.assigned).difference(found)
    if missing and not missing_ok:
        raise UnknownTopicOrPartition(f"There is no {', '.join(map(str, sorted(missing)))}.")
    return [tp for tp in subscription.assigned if tp not in missing], topic_ids


async def _find_topics(client: Client, subscription: Subscription, *, missing_ok: bool) -> list[Topic]:
    if subscription.pattern:
        topics = await client.topics()
        return [
            topic for topic in topics.values() if not topic.is_internal and subscription.matches(topic.name)
        ]
    found = []
    for name in subscription.topics or tuple(dict.fromkeys(tp.topic for tp in subscription.assigned)):
        try:
            found.append(await client.topic(name))
        except UnknownTopicOrPartition:
            if not missing_ok:
                raise UnknownTopicOrPartition(f"There is no topic {name}.") from None
    return found


def recreated(options: ReadOptions, known: TopicIds, now: TopicIds) -> set[str]:
    """Return the topics whose ID has changed. Raises DataLost if there are any and failOnDataLoss is true."""
    changed = {name for name, topic_id in known.items() if now.get(name, topic_id) != topic_id}
    if changed and options.fail_on_data_loss:
        raise DataLost(
            f"topic {', '.join(sorted(changed))} was deleted and created again since the checkpoint was written. "
            "Set failOnDataLoss=false to read the new topic from its beginning."
        )
    return changed


async def resolve(client: Client, options: ReadOptions, which: str, tps: Iterable[TopicPartition]) -> Offsets:
    """Resolve the options for starting offsets (if `which` is "starting") or ending offsets to offsets."""
    position: Position = options.starting if which == "starting" else options.ending
    tps = list(tps)
    if position is Bound.EARLIEST:
        return await earliest_offsets(client, tps)
    if position is Bound.LATEST:
        return await latest_offsets(client, options, tps)
    if isinstance(position, SpecificOffsets):
        _check_complete(f"{which}Offsets", position.offsets, tps)
        offsets = dict(position.offsets)
        offsets |= await earliest_offsets(client, _those(offsets, EARLIEST_OFFSET))
        return offsets | await latest_offsets(client, options, _those(offsets, LATEST_OFFSET))
    return await _at_timestamps(client, options, which, position, tps)


async def earliest_offsets(client: Client, tps: Iterable[TopicPartition]) -> Offsets:
    """Return the log start offsets."""
    return await _listed(client, dict.fromkeys(tps, EARLIEST))


async def latest_offsets(client: Client, options: ReadOptions, tps: Iterable[TopicPartition]) -> Offsets:
    """Return the high watermarks, or the last stable offsets, depending on the isolation level of the options."""
    return await _listed(client, dict.fromkeys(tps, LATEST), options.isolation_level)


async def ranges_between(
    client: Client,
    options: ReadOptions,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> list[Range]:
    """Return the ranges of offsets to read. A partition without a start is new, and is read from its log start.

    Raises DataLost for offsets and partitions that do not exist any more, if failOnDataLoss is true.
    """
    gone = sorted(start.keys() - end.keys())
    if gone and options.fail_on_data_loss:
        raise DataLost(
            f"{', '.join(map(str, gone))} cannot be read any more: deleted, or not subscribed to. "
            "Set failOnDataLoss=false to continue without them."
        )
    earliest = await earliest_offsets(client, end)
    fetcher = Fetcher(client, options.isolation_level)
    ranges = []
    for tp in sorted(end):
        first = start.get(tp, earliest[tp])
        wanted = Range(tp, first, end[tp])
        missing = None
        if first > end[tp]:
            missing = Range(tp, end[tp], first)
        elif first < min(earliest[tp], end[tp]) and await fetcher.is_gone(tp, first):
            missing = Range(tp, first, min(earliest[tp], end[tp]))
            wanted = Range(tp, missing.end, end[tp])
        if missing is not None and options.fail_on_data_loss:
            raise DataLost(lost(missing))
        if wanted.start < wanted.end:
            ranges.append(wanted)
    return ranges


async def _listed(
    client: Client, timestamps: Mapping[TopicPartition, int], isolation_level: int = 0
) -> Offsets:
    if not timestamps:
        return {}
    listed = await client.list_offsets(timestamps, isolation_level=isolation_level)
    return {tp: found.offset for tp, found in listed.items()}


async def _at_timestamps(
    client: Client, options: ReadOptions, which: str, position: SpecificTimestamps, tps: list[TopicPartition]
) -> Offsets:
    if isinstance(position.timestamps, int):
        timestamps: Mapping[TopicPartition, int] = dict.fromkeys(tps, position.timestamps)
    else:
        _check_complete(f"{which}OffsetsByTimestamp", position.timestamps, tps)
        timestamps = position.timestamps
    offsets = await _listed(client, timestamps)
    later = _those(offsets, -1)
    if later and not position.or_latest:
        raise WrongOption(
            f"{later[0]} has no record at or after {timestamps[later[0]]} ms; "
            "startingOffsetsByTimestampStrategy=latest begins at its end then"
        )
    latest = await latest_offsets(client, options, tps)
    return {tp: latest[tp] if offset < 0 else min(offset, latest[tp]) for tp, offset in offsets.items()}


def _those(offsets: Mapping[TopicPartition, int], value: int) -> list[TopicPartition]:
    return [tp for tp, offset in offsets.items() if offset == value]


def _check_complete(option: str, given: Iterable[TopicPartition], tps: Iterable[TopicPartition]) -> None:
    missing, unknown = set(tps).difference(given), set(given).difference(tps)
    if missing:
        raise WrongOption(
            f"{option} has to name every partition that is read, and lacks {', '.join(map(str, sorted(missing)))}; "
            "-2 stands for the earliest offset, -1 for the latest"
        )
    if unknown:
        raise WrongOption(f"{option} names {', '.join(map(str, sorted(unknown)))}, which is not read")
