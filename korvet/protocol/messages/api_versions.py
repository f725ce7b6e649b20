"""ApiVersions: which APIs and versions a broker speaks, and what features it has (KIP-511, KIP-584)."""

from __future__ import annotations

from korvet.protocol.schema import array, boolean, int16, int32, int64, message, string, struct


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    client_software_name: str = string(versions="3+", default="", ignorable=True)
    client_software_version: str = string(versions="3+", default="", ignorable=True)
    cluster_id: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)
    node_id: int = int32(versions="5+", default=-1, ignorable=True)


@struct
class ApiVersion:
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@struct
class SupportedFeatureKey:
    name: str = string(versions="3+")
    min_version: int = int16(versions="3+")
    max_version: int = int16(versions="3+")


@struct
class FinalizedFeatureKey:
    name: str = string(versions="3+")
    max_version_level: int = int16(versions="3+")
    min_version_level: int = int16(versions="3+")


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    error_code: int = int16(default=0)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, versions="3+", tag=0, factory=list, ignorable=True
    )
    finalized_features_epoch: int = int64(versions="3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, versions="3+", tag=2, factory=list, ignorable=True
    )
    zk_migration_ready: bool = boolean(versions="3+", tag=3, default=False, ignorable=True)
