from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.handlers import APIS, apis_on
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.security.session import Sasl, Session, State
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

    assert (0, 0, 13) == (
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


@pytest.mark.parametrize(
    "cluster_id, node_id, error",
    [
        (None, -1, ErrorCode.NONE),
        ("own", 1, ErrorCode.NONE),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("own", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("own", -2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("own", -1, ErrorCode.INVALID_REQUEST),
        ("another", -1, ErrorCode.INVALID_REQUEST),
        (None, 1, ErrorCode.INVALID_REQUEST),
        (None, 2, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_client_of_another_cluster_or_broker_has_to_rebootstrap(
    broker: Broker, cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    request = ApiVersionsRequest(
        client_software_name="client",
        client_software_version="1.0",
        cluster_id=broker.cluster_id if cluster_id == "own" else cluster_id,
        node_id=node_id,
    )

    response = await ask(broker, 18, 5, request)

    assert (error, error == ErrorCode.NONE) == (response.error_code, bool(response.api_keys))


async def test_ids_are_not_compared_before_the_client_has_authenticated(broker: Broker) -> None:
    request = ApiVersionsRequest(
        client_software_name="client", client_software_version="1.0", cluster_id="another", node_id=2
    )
    sasl = Sasl(enabled=["PLAIN"], users=broker.users)
    session = Session(sasl, "127.0.0.1:1")

    before = await ask(broker, 18, 5, request, session=session)
    session.state = State.AUTHENTICATED
    after = await ask(broker, 18, 5, request, session=session)

    assert (ErrorCode.NONE, ErrorCode.REBOOTSTRAP_REQUIRED) == (before.error_code, after.error_code)


@pytest.mark.parametrize(
    "version, supported",
    [(3, []), (4, [("group.version", 0, 1), ("transaction.version", 0, 2), ("share.version", 0, 1)])],
)
async def test_versions_of_groups_and_transactions_are_finalized(
    broker: Broker, version: int, supported: list[tuple[str, int, int]]
) -> None:
    response = await versions(broker, version)

    assert supported == [
        (each.name, each.min_version, each.max_version) for each in response.supported_features
    ]
    assert [("group.version", 1, 1), ("transaction.version", 2, 2), ("share.version", 1, 1)] == [
        (each.name, each.min_version_level, each.max_version_level) for each in response.finalized_features
    ]
    assert 1 == response.finalized_features_epoch


# --- A store without transactions ----------------------------------------------------------------------------


async def test_only_groups_are_a_finalized_feature_without_transactions(plain: Broker) -> None:
    response = await versions(plain, 4)

    assert ["group.version", "share.version"] == [each.name for each in response.supported_features]
    assert [("group.version", 1, 1), ("share.version", 1, 1)] == [
        (each.name, each.min_version_level, each.max_version_level) for each in response.finalized_features
    ]


async def test_apis_of_transactions_are_not_listed_without_transactions(plain: Broker) -> None:
    response = await versions(plain, 4)

    listed = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    served = apis_on(plain.store)
    assert {key: (api.advertised_min_version, api.max_version) for key, api in served.items()} == listed
    assert set(APIS) - set(listed) == {24, 25, 26, 27, 28, 61, 65, 66}
    assert (0, 11) == listed[0]
