"""ListConfigResources: v0-1.

Behaviour: the names of all resources of the types asked for; no types ask for every type. Topics and brokers have
settings, and groups that clients have given some; the broker stands once as a broker and once for its loggers, as in
Kafka. There are no settings for client metrics. A type that Kafka has no settings for: UNSUPPORTED_VERSION.

Versions: v0 (ListClientMetricsResources, KIP-714) lists client metrics alone, so nothing. Types from v1 (KIP-1142).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import KafkaError, UnsupportedVersion
from korvet.protocol.messages.list_config_resources import (
    CLIENT_METRICS,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from korvet.security.acls import Operation


class Listed(IntEnum):
    """The types of resources that Kafka lists, in the order of its answers."""

    GROUP = 32
    CLIENT_METRICS = CLIENT_METRICS
    BROKER_LOGGER = 8
    BROKER = 4
    TOPIC = 2


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE_CONFIGS)
        if unsupported := set(request.resource_types) - set(Listed):
            raise UnsupportedVersion(f"resource types {sorted(unsupported)} have no settings")
        topics = [topic.name for topic in await broker.all_topics()]
    except KafkaError as error:
        return ListConfigResourcesResponse(error_code=error.error_code, config_resources=[])
    nodes = [str(node.node_id) for node in broker.nodes(context)]
    wanted = request.resource_types or (list(Listed) if context.version >= 1 else [CLIENT_METRICS])
    names: dict[int, Sequence[str]] = {
        Listed.GROUP: sorted(broker.group_settings.value),
        Listed.BROKER_LOGGER: nodes,
        Listed.BROKER: nodes,
        Listed.TOPIC: topics,
    }
    return ListConfigResourcesResponse(config_resources=[*_resources(wanted, names)])


def _resources(wanted: Sequence[int], names: Mapping[int, Sequence[str]]) -> Iterator[ConfigResource]:
    for kind in Listed:
        if kind in wanted:
            yield from (
                ConfigResource(resource_name=name, resource_type=kind) for name in names.get(kind, ())
            )
