from __future__ import annotations

import pytest

from korvet.protocol.errors import KafkaStorageError, ResourceNotFound
from korvet.security.scram import ScramCredential, ScramMechanism, credential_of, salted_password
from korvet.security.users import Users
from korvet.storage.interface import DocumentConflict
from korvet.storage.memory import MemoryStorage

SHA_256, SHA_512 = ScramMechanism


def credential(password: str, mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, b"salt", 4096), b"salt", 4096)


async def test_credentials_are_stored_by_user_and_mechanism() -> None:
    storage = MemoryStorage()
    users = Users(storage)
    one, two = credential("one"), credential("two", SHA_512)
    await users.put("alice", SHA_256, credential("zero"))
    await users.put("alice", SHA_256, one)
    await users.put("alice", SHA_512, two)
    await users.put("a:b\0ü", SHA_512, two)

    assert {SHA_256: one, SHA_512: two} == await Users(storage).credentials("alice")
    assert ["a:b\0ü", "alice"] == await users.names()
    await users.remove("alice", SHA_256)
    assert {SHA_512: two} == await users.credentials("alice")
    await users.remove("alice", SHA_512)
    assert ["a:b\0ü"] == await users.names()
    with pytest.raises(ResourceNotFound):
        await users.remove("alice", SHA_512)


async def test_no_password_is_stored() -> None:
    storage = MemoryStorage()
    await Users(storage).put("alice", SHA_256, credential("a very long password"))
    document = await storage.load("users", "alice")

    assert document is not None
    assert b"a very long password" not in document.value
    assert salted_password(SHA_256, "a very long password", b"salt", 4096) not in document.value


async def test_passwords_are_verified() -> None:
    users = Users(MemoryStorage())
    await users.put("alice", SHA_256, credential("right"))

    assert await users.has_password("alice", "right")
    assert not await users.has_password("alice", "wrong")
    assert not await users.has_password("bob", "right")


async def test_credential_of_an_unknown_user_is_stable() -> None:
    storage = MemoryStorage()
    made_up = await Users(storage).credential("bob", SHA_256)

    assert made_up == await Users(storage).credential("bob", SHA_256)
    assert made_up.salt.isalnum()
    assert 32 == len(made_up.stored_key)
    assert 4096 == made_up.iterations
    others = [
        await Users(storage).credential("bob", SHA_512),
        await Users(storage).credential("eve", SHA_256),
    ]
    others.append(await Users(MemoryStorage()).credential("bob", SHA_256))
    assert 4 == len({each.salt for each in (made_up, *others)})


async def test_concurrent_change_by_another_broker_is_not_lost() -> None:
    class Racing(MemoryStorage):
        raced = False

        async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
            if not self.raced:
                self.raced = True
                await Users(self).put(key, SHA_512, credential("other", SHA_512))
                raise DocumentConflict
            return await super().save(kind, key, value, expected_version=expected_version)

    users = Users(Racing())
    await users.put("alice", SHA_256, credential("mine"))

    assert {SHA_256, SHA_512} == set(await users.credentials("alice"))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"{",
        b'{"SCRAM-SHA-256": {}}',
        b'{"SCRAM-SHA-256": {"salt": "!", "stored_key": "", "server_key": "", "iterations": 1}}',
        b'{"SCRAM-SHA-256": {"salt": "", "stored_key": "", "server_key": "", "iterations": "x"}}',
    ],
)
async def test_damaged_document_is_a_storage_error(value: bytes) -> None:
    storage = MemoryStorage()
    await storage.save("users", "alice", value, expected_version=0)
    if value == b"[]":
        assert {} == await Users(storage).credentials("alice")
        return
    with pytest.raises(KafkaStorageError, match="'alice' are damaged"):
        await Users(storage).credentials("alice")
