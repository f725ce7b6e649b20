from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.handlers import APIS
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.handlers.support import ask


async def versions(
    broker: Broker, version: int, name: str = "client", number: str = "1.0"
) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=number)
    response = await ask(broker, 18, version, request)
    assert isinstance(response, ApiVersionsResponse)
    return response


async def test_response_lists_exactly_the_served_apis(broker: Broker) -> None:
    response = await versions(broker, 4)

    assert [(api.key, api.advertised_min_version, api.max_version) for api in APIS.values()] == [
        (each.api_key, each.min_version, each.max_version) for each in response.api_keys
    ]


async def test_produce_is_advertised_from_version_0(broker: Broker) -> None:
    response = await versions(broker, 0)

    assert (0, 0, 11) == (
        response.api_keys[0].api_key,
        response.api_keys[0].min_version,
        response.api_keys[0].max_version,
    )


def test_apis_are_ordered_by_key() -> None:
    assert sorted(APIS) == list(APIS)


@pytest.mark.parametrize("name", ["", "-client", "client-", "cli ent", "client\n"])
async def test_invalid_client_software_names_are_refused(broker: Broker, name: str) -> None:
    response = await versions(broker, 3, name=name)

    assert (ErrorCode.INVALID_REQUEST, []) == (response.error_code, response.api_keys)


async def test_client_software_name_is_not_checked_before_version_3(broker: Broker) -> None:
    response = await versions(broker, 2, name="", number="")

    assert ErrorCode.NONE == response.error_code


async def test_no_features_are_finalized(broker: Broker) -> None:
    response = await versions(broker, 4)

    assert ([], [], -1) == (
        response.supported_features,
        response.finalized_features,
        response.finalized_features_epoch,
    )
