"""The brokers of a cluster, and what each of them leads and coordinates."""

from __future__ import annotations

from collections import Counter

from attrs import frozen

from korvet.client.administration import describe_cluster
from korvet.client.client import Client
from korvet.client.groups import list_groups
from korvet.protocol.errors import BrokerNotAvailable, KafkaError


@frozen
class BrokerShare:
    """A broker, the number of partitions that it leads, and the ids of the groups that it coordinates.

    `groups` is None if the broker does not answer: it may have ended, and not have been missed yet.
    """

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    leads: int
    groups: tuple[str, ...] | None


async def describe_brokers(client: Client, broker_id: int | None = None) -> list[BrokerShare]:
    """Return the brokers, sorted by id; or the one with that id, if it exists."""
    cluster = await describe_cluster(client)
    topics = await client.topics()
    leads = Counter(each.leader_id for topic in topics.values() for each in topic.partitions)
    return [
        BrokerShare(
            each.broker_id,
            each.host,
            each.port,
            each.rack,
            each.broker_id == cluster.controller_id,
            leads[each.broker_id],
            await _groups_of(client, each.broker_id),
        )
        for each in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
        if broker_id in (None, each.broker_id)
    ]


async def _groups_of(client: Client, broker_id: int) -> tuple[str, ...] | None:
    try:
        return tuple(group.group_id for group in await list_groups(client, node_ids=[broker_id]))
    except KafkaError:
        return None


async def describe_broker(client: Client, broker_id: int) -> BrokerShare:
    """Return one broker. Raises BrokerNotAvailable if there is none with that id."""
    for found in await describe_brokers(client, broker_id):
        return found
    raise BrokerNotAvailable(f"there is no broker {broker_id}")
