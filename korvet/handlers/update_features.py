"""UpdateFeatures: v0-2.

Behaviour: the finalized level of each feature is the newest that the broker serves (see ApiVersions), and does not
change. An update to that level succeeds and changes nothing; so Kafka's tools print what they print on an upgraded
cluster. Every other update fails all of them: INVALID_UPDATE_VERSION, with the reason in Kafka's words.

Versions: v0 allows downgrades by a flag, v1 and later by a type. Up to v1 the response repeats each feature.

Declined: `timeout_ms`, and downgrades, which Kafka stores.
"""

from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.features import features_of
from korvet.protocol.errors import InvalidUpdateVersion, KafkaError
from korvet.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from korvet.security.acls import Operation

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
FAILED = "The update failed for all features since the following feature had an error: "


async def handle(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    try:
        broker.cluster(context, Operation.ALTER)
    except KafkaError as error:
        return UpdateFeaturesResponse(error_code=error.error_code, error_message=error.message or None)
    features = dict(features_of(broker.store))
    # Of a feature that is named twice, the last update counts, as in Kafka.
    for update in {each.feature: each for each in request.feature_updates}.values():
        try:
            _check(update, features, broker.controller_id, context.version)
        except InvalidUpdateVersion as error:
            return UpdateFeaturesResponse(
                error_code=error.error_code, error_message=f"{FAILED}{error.message}"
            )
    results = [
        UpdatableFeatureResult(feature=each.feature, error_message="NONE") for each in request.feature_updates
    ]
    return UpdateFeaturesResponse(error_message=None, results=results)


def _check(update: FeatureUpdateKey, features: dict[str, int], controller_id: int, version: int) -> None:
    """Raise InvalidUpdateVersion unless the update is to the present level of a feature."""
    kind = update.upgrade_type
    if version == 0:
        kind = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    level, wanted = features.get(update.feature), update.max_version_level
    if reason := _reason(update.feature, level, wanted, kind, controller_id):
        raise InvalidUpdateVersion(f"Invalid update version {wanted} for feature {update.feature}. {reason}")


def _reason(feature: str, level: int | None, wanted: int, kind: int, controller_id: int) -> str:
    """Return the reason for which a feature cannot get the wanted level; empty if it has that level."""
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if wanted < 0:
        return "A feature version cannot be less than 0."
    if level is None and wanted == 0:
        return f"Feature {feature} not found."
    if level is None:
        return f"Local controller {controller_id} does not support this feature."
    if wanted > level:
        return f"Local controller {controller_id} only supports versions 0-{level}"
    if wanted == level:
        return ""
    if kind == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    return f"The brokers always serve version {level}."
