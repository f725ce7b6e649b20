"""DescribeCluster: v0-2.

Behaviour: the response has the cluster id, the brokers with the advertised addresses of the listener that received the
request, and a controller. It has authorized operations only if requested.

Versions: v1 has an endpoint type, brokers (1) or controllers (2): controllers are MISMATCHED_ENDPOINT_TYPE, other
values UNSUPPORTED_ENDPOINT_TYPE. v2 can request fenced brokers; there are none.
"""

from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import KafkaError, MismatchedEndpointType, UnsupportedEndpointType
from korvet.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from korvet.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED

BROKERS = 1
CONTROLLERS = 2


async def handle(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    try:
        _check(request.endpoint_type)
    except KafkaError as error:
        return DescribeClusterResponse(
            error_code=error.error_code, error_message=error.message, cluster_id="", brokers=[]
        )
    operations = AUTHORIZED_OPERATIONS_OMITTED
    if request.include_cluster_authorized_operations:
        operations = broker.cluster_operations(context)
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.nodes(context)
        ],
        cluster_authorized_operations=operations,
    )


def _check(endpoint_type: int) -> None:
    if endpoint_type == CONTROLLERS:
        raise MismatchedEndpointType("This is a broker, not a controller.")
    if endpoint_type != BROKERS:
        raise UnsupportedEndpointType(f"Unsupported endpoint type {endpoint_type}")
