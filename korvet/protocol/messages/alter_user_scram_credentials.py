"""AlterUserScramCredentials: add, replace and delete the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from korvet.protocol.schema import array, bytes_, int8, int16, int32, message, string, struct


@struct
class ScramCredentialDeletion:
    name: str = string()
    mechanism: int = int8()


@struct
class ScramCredentialUpsertion:
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = bytes_()
    salted_password: bytes = bytes_()


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@struct
class AlterUserScramCredentialsResult:
    user: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+")


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = int32(default=0)
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
