"""ApiVersions: v0-5.

Behaviour: the response lists every API in the table with its served versions. Produce is advertised from v0, which
librdkafka requires to enable compression. `korvet.protocol.connection` answers unknown versions of ApiVersions, in v0
and with the supported range.

Versions: v3 has the name and version of the client's software (KIP-511), which are validated. v4 is the same here. v5
has the ids of the cluster and the broker that the client intends to connect to (KIP-1242).

Errors: INVALID_REQUEST if the software's name or version is malformed, or if the request has only one of both ids.
REBOOTSTRAP_REQUIRED if an id is not this broker's; as in Kafka, not before the client has authenticated.

Features (KIP-584): `group.version` is finalized at 1, so clients may use groups whose broker assigns partitions
(KIP-848), and `share.version` at 1, for share groups (KIP-932). `transaction.version` is finalized at 2 if the store
serves transactions, so clients use the second generation of the protocol (KIP-890). As in Kafka, they are no supported
features before v4, since older clients refuse the minimum 0. On other stores the response has neither
`transaction.version` nor the APIs of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from attrs import Factory, frozen

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.features import features_of
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from korvet.protocol.text import is_software
from korvet.storage.interface import StorageInfo

Handler = Callable[[Broker, ApiVersionsRequest, RequestContext], Coroutine[Any, Any, ApiVersionsResponse]]

NO_NODE = -1  # the default of `node_id`
NOT_SERVED = -1
# All brokers finalize the same level, so its epoch never rises.
FEATURES_EPOCH = 1


@frozen
class Served:
    """The key and name of an API, and its served versions."""

    key: int
    name: str
    min_version: int
    max_version: int
    # The minimum in the response; below `min_version` only for Produce.
    advertised_min_version: int = Factory(lambda self: self.min_version, takes_self=True)
    # The maximum on a store that does not serve transactions, or NOT_SERVED.
    without_transactions: int = Factory(lambda self: self.max_version, takes_self=True)


def handler(served: Sequence[Served]) -> Handler:
    """Return a handler that lists these APIs."""

    async def handle(
        broker: Broker, request: ApiVersionsRequest, context: RequestContext
    ) -> ApiVersionsResponse:
        if not _is_valid(request, context.version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        is_authenticated = context.session is None or context.session.is_authenticated
        if is_authenticated and _is_for_another(broker, request):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[])
        if context.session is not None:
            context.session.versions_listed()
        return _response(served, context.version, broker.store)

    return handle


def _response(served: Sequence[Served], version: int, store: StorageInfo) -> ApiVersionsResponse:
    features = features_of(store)
    if store.serves_transactions:
        listed = [_described(api, api.max_version) for api in served]
    else:
        listed = [
            _described(api, api.without_transactions)
            for api in served
            if api.without_transactions != NOT_SERVED
        ]
    response = ApiVersionsResponse(
        api_keys=listed,
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features
        ],
    )
    if version >= 4:
        response.supported_features = [
            SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in features
        ]
    return response


def _is_valid(request: ApiVersionsRequest, version: int) -> bool:
    if (request.cluster_id is None) != (request.node_id == NO_NODE):
        return False
    return version < 3 or is_software(request.client_software_name, request.client_software_version)


def _is_for_another(broker: Broker, request: ApiVersionsRequest) -> bool:
    """Return True if the request has the ids of another cluster or another broker."""
    if request.cluster_id is None:
        return False
    return (request.cluster_id, request.node_id) != (broker.cluster_id, broker.config.node_id)


def _described(api: Served, max_version: int) -> ApiVersion:
    return ApiVersion(api_key=api.key, min_version=api.advertised_min_version, max_version=max_version)
