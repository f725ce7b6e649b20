"""UpdateFeatures: finalize levels of features (KIP-584).

v1 added types of updates, and requests that only validate; v2 has no result for each feature.
"""

from __future__ import annotations

from korvet.protocol.schema import array, boolean, int8, int16, int32, message, string, struct


@struct
class FeatureUpdateKey:
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(versions="0", default=False)
    upgrade_type: int = int8(versions="1+", default=1)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(versions="1+", default=False)


@struct
class UpdatableFeatureResult:
    feature: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    results: list[UpdatableFeatureResult] = array(
        UpdatableFeatureResult, versions="0-1", factory=list, ignorable=True
    )
