"""FindCoordinator: which broker coordinates groups (type 0) and transactional ids (type 1).

One key up to v3, any number from v4 (KIP-699).
"""

from __future__ import annotations

from korvet.protocol.schema import array, int8, int16, int32, message, string, struct


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = string(versions="0-3", default="")
    key_type: int = int8(versions="1+", default=0)
    coordinator_keys: list[str] = array(string, versions="4+", factory=list)


@struct
class Coordinator:
    key: str = string(versions="4+")
    node_id: int = int32(versions="4+")
    host: str = string(versions="4+")
    port: int = int32(versions="4+")
    error_code: int = int16(versions="4+", default=0)
    error_message: str | None = string(versions="4+", nullable="4+", ignorable=True)


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    error_code: int = int16(versions="0-3", default=0)
    error_message: str | None = string(versions="1-3", nullable="1-3", default="", ignorable=True)
    node_id: int = int32(versions="0-3", default=0)
    host: str = string(versions="0-3", default="")
    port: int = int32(versions="0-3", default=0)
    coordinators: list[Coordinator] = array(Coordinator, versions="4+", factory=list)
