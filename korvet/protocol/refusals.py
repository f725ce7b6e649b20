"""Responses to requests of versions that the broker does not serve."""

from __future__ import annotations

from korvet.protocol.codec import decode
from korvet.protocol.connection import PRODUCE, Api
from korvet.protocol.errors import ErrorCode, ProtocolError
from korvet.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from korvet.protocol.messages.header import RequestHeader
from korvet.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from korvet.protocol.requests import API_VERSIONS, request_header_version
from korvet.protocol.schema import versions_of


def refusal(api: Api, version: int, frame: memoryview) -> tuple[RequestHeader, object, int]:
    """Return the header of a request, and its response with the version of that.

    Raises ProtocolError for other APIs than ApiVersions and Produce.
    """
    header, end = decode(RequestHeader, request_header_version(api.request, version), frame)
    if api.key == API_VERSIONS:
        return header, refused_api_versions(api), 0
    if api.key == PRODUCE and version in versions_of(api.request) and version < api.min_version:
        body, _ = decode(ProduceRequest, version, frame, end)
        return header, refused_produce(body), version
    served = f"{api.min_version} to {api.max_version} are served"
    raise ProtocolError(f"{api.name} version {version}; {served}")


def refused_api_versions(api: Api) -> ApiVersionsResponse:
    """Return error 35 with the served versions of ApiVersions."""
    supported = ApiVersion(
        api_key=api.key, min_version=api.advertised_min_version, max_version=api.max_version
    )
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])


def refused_produce(request: ProduceRequest) -> ProduceResponse:
    """Return error 35 for every partition. Raises ProtocolError for acks=0."""
    # With acks=0 the client does not wait for a response, so the broker can only close the connection.
    if request.acks == 0:
        raise ProtocolError("a Produce below version 3 with acks=0")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(
                        index=partition.index, error_code=ErrorCode.UNSUPPORTED_VERSION, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
