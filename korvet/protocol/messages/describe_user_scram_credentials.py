"""DescribeUserScramCredentials: the SCRAM mechanisms and iterations of users (KIP-554)."""

from __future__ import annotations

from korvet.protocol.schema import array, int8, int16, int32, message, string, struct


@struct
class UserName:
    name: str = string()


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = array(UserName, nullable="0+")


@struct
class CredentialInfo:
    mechanism: int = int8()
    iterations: int = int32()


@struct
class DescribeUserScramCredentialsResult:
    user: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
