from __future__ import annotations

import pytest
import trio

from korvet.protocol.errors import KafkaStorageError, ResourceNotFound
from korvet.security.scram import ScramCredential, ScramMechanism, credential_of, new_salt, salted_password
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


async def test_unknown_users_have_the_iterations_and_salts_of_known_ones() -> None:
    users = Users(MemoryStorage())
    for number in range(20):
        iterations, salt = (8192, new_salt()) if number % 4 else (4096, bytes([number]) * 16)
        salted = salted_password(SHA_256, "x", salt, iterations)
        await users.put(f"known-{number}", SHA_256, credential_of(SHA_256, salted, salt, iterations))
    others = [await users.credential(f"other-{number}", SHA_256) for number in range(400)]

    assert {4096, 8192} == {each.iterations for each in others}
    assert 200 < sum(each.iterations == 8192 for each in others) < 380
    for each in others:
        assert (16 == len(each.salt)) == (4096 == each.iterations)
    assert 400 == len({each.salt for each in others})
    assert 4096 == (await users.credential("other", SHA_512)).iterations


async def test_unknown_users_keep_their_credential_when_users_are_added(
    autojump_clock: trio.abc.Clock,
) -> None:
    users = Users(MemoryStorage())
    await users.put("one", SHA_256, credential("x"))
    before = [await users.credential(f"other-{number}", SHA_256) for number in range(100)]
    salted = salted_password(SHA_256, "x", b"salt", 16384)
    await users.put("two", SHA_256, credential_of(SHA_256, salted, b"salt", 16384))
    await trio.sleep(61)
    after = [await users.credential(f"other-{number}", SHA_256) for number in range(100)]

    changed = [one for one, other in zip(before, after, strict=True) if one != other]
    assert 25 < len(changed) < 75
    assert {4096, 16384} == {each.iterations for each in after}


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
