"""ListConfigResources: the resources whose settings DescribeConfigs describes (KIP-714, KIP-1142)."""

from __future__ import annotations

from korvet.protocol.schema import array, int8, int16, int32, message, string, struct

CLIENT_METRICS = 16


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: list[int] = array(int8, versions="1+", factory=list)


@struct
class ConfigResource:
    resource_name: str = string()
    resource_type: int = int8(versions="1+", default=CLIENT_METRICS, ignorable=True)


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    config_resources: list[ConfigResource] = array(ConfigResource)
