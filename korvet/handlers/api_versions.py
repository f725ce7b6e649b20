"""ApiVersions: v0-4.

Behaviour: every API in the table, with the versions that are served; Produce is advertised from v0, which
librdkafka takes as the sign of a broker that knows compression. A version we do not know is answered by
`korvet.protocol.connection`, in v0 and with the range we do know.

Versions: 3 names the client's software (KIP-511), which must look like a name. 4 changes nothing here.

Declined: features (KIP-584). None are finalized, so clients stay with what the versions say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from attrs import Factory, frozen

from korvet.broker import Broker, RequestContext
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

SOFTWARE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")

Handler = Callable[[Broker, ApiVersionsRequest, RequestContext], Coroutine[Any, Any, ApiVersionsResponse]]


@frozen
class Served:
    """An API by key and name, and the versions of it that are served."""

    key: int
    name: str
    min_version: int
    max_version: int
    # What is told; below `min_version` only for Produce.
    advertised_min_version: int = Factory(lambda self: self.min_version, takes_self=True)


def handler(served: Sequence[Served]) -> Handler:
    """The handler that tells of these APIs."""

    async def handle(
        _broker: Broker, request: ApiVersionsRequest, context: RequestContext
    ) -> ApiVersionsResponse:
        if context.version >= 3 and not _names_software(request):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        return ApiVersionsResponse(api_keys=[_described(api) for api in served])

    return handle


def _described(api: Served) -> ApiVersion:
    return ApiVersion(api_key=api.key, min_version=api.advertised_min_version, max_version=api.max_version)


def _names_software(request: ApiVersionsRequest) -> bool:
    return all(
        SOFTWARE.fullmatch(text) for text in (request.client_software_name, request.client_software_version)
    )
