from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.handlers.support import ask


async def update(broker: Broker, *updates: FeatureUpdateKey, version: int = 2) -> UpdateFeaturesResponse:
    response = await ask(broker, 57, version, UpdateFeaturesRequest(feature_updates=list(updates)))
    assert isinstance(response, UpdateFeaturesResponse)
    return response


def to(level: int, feature: str = "transaction.version", **kind: int) -> FeatureUpdateKey:
    return FeatureUpdateKey(feature=feature, max_version_level=level, **kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(3))
async def test_updates_to_the_served_level_succeed(broker: Broker, version: int) -> None:
    response = await update(broker, to(2), to(1, "group.version"), version=version)

    assert ErrorCode.NONE == response.error_code
    named = ["transaction.version", "group.version"]
    assert named == [each.feature for each in response.results]


@pytest.mark.parametrize(
    "wanted, reason",
    [
        (to(3), "Local controller 1 only supports versions 0-2"),
        (to(1), "Can't downgrade the version of this feature without"),
        (to(1, upgrade_type=2), "The brokers always serve version 2."),
        (to(-1, upgrade_type=2), "A feature version cannot be less than 0."),
        (to(2, upgrade_type=4), "The controller does not support the given upgrade type."),
        (to(1, "nothing.version"), "Local controller 1 does not support this feature."),
        (to(0, "nothing.version", upgrade_type=2), "Feature nothing.version not found."),
    ],
)
async def test_other_updates_fail_all(broker: Broker, wanted: FeatureUpdateKey, reason: str) -> None:
    response = await update(broker, to(1, "group.version"), wanted)

    assert ErrorCode.INVALID_UPDATE_VERSION == response.error_code
    assert reason in (response.error_message or "")


async def test_downgrades_of_the_first_version_have_a_flag(broker: Broker) -> None:
    messages = [
        (await update(broker, to(1, allow_downgrade=flag), version=0)).error_message or ""
        for flag in (False, True)
    ]

    assert ["Can't downgrade" in messages[0], "always serve" in messages[1]] == [True, True]


async def test_transactions_are_no_feature_of_a_store_without_them(plain: Broker) -> None:
    response = await update(plain, to(2))

    assert ErrorCode.INVALID_UPDATE_VERSION == response.error_code
