"""Small documents with compare-and-set."""

from __future__ import annotations

import pytest
import trio

from korvet.storage.interface import Document, DocumentConflict, Storage
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment


class DocumentContract(Contract):
    async def test_saved_document_is_loaded(self, storage: Storage) -> None:
        value = bytes(range(256))
        version = await storage.save("credentials", "alice", value, expected_version=0)

        assert 1 == version
        assert Document(value, 1) == await storage.load("credentials", "alice")

    async def test_missing_document_is_none(self, storage: Storage) -> None:
        assert await storage.load("credentials", "alice") is None

    async def test_announcement_ends_the_wait_of_a_watch(self, storage: Storage) -> None:
        with storage.watch_documents("credentials") as changes, trio.fail_after(30):
            await storage.announce("credentials")
            await changes.wait()

    async def test_versions_count_writes(self, storage: Storage) -> None:
        versions = [await storage.save("k", "x", b"%d" % n, expected_version=n) for n in range(12)]

        assert list(range(1, 13)) == versions
        assert Document(b"11", 12) == await storage.load("k", "x")

    async def test_empty_document_is_stored(self, storage: Storage) -> None:
        await storage.save("k", "x", b"", expected_version=0)

        assert Document(b"", 1) == await storage.load("k", "x")

    @pytest.mark.parametrize("expected_version", [0, 1, 3])
    async def test_wrong_expected_version_conflicts(self, storage: Storage, expected_version: int) -> None:
        await storage.save("k", "x", b"1", expected_version=0)
        await storage.save("k", "x", b"2", expected_version=1)
        for value in (b"3", None):
            with pytest.raises(DocumentConflict) as conflict:
                await storage.save("k", "x", value, expected_version=expected_version)
            assert Document(b"2", 2) == conflict.value.current

        assert Document(b"2", 2) == await storage.load("k", "x")

    async def test_expected_version_of_a_missing_document_conflicts(self, storage: Storage) -> None:
        for value in (b"1", None):
            with pytest.raises(DocumentConflict) as conflict:
                await storage.save("k", "x", value, expected_version=1)
            assert conflict.value.current is None

        assert await storage.load("k", "x") is None

    async def test_deleted_document_is_missing_and_can_be_saved_again(self, storage: Storage) -> None:
        await storage.save("k", "x", b"1", expected_version=0)
        await storage.save("k", "x", None, expected_version=1)
        gone = await storage.load("k", "x")
        await storage.save("k", "x", b"2", expected_version=0)
        found = await storage.load("k", "x")

        assert gone is None
        assert found is not None
        assert b"2" == found.value

    async def test_kinds_and_keys_are_distinguished(self, storage: Storage) -> None:
        addresses = [("a", "b"), ("b", "a"), ("a", "b:c"), ("a:b", "c"), ("a", ""), ("größe", "🔑")]
        for kind, key in addresses:
            await storage.save(kind, key, f"{kind} {key}".encode(), expected_version=0)
        values = [await storage.load(kind, key) for kind, key in addresses]

        assert values == [Document(f"{kind} {key}".encode(), 1) for kind, key in addresses]

    async def test_concurrent_increments_of_two_brokers_are_not_lost(
        self, storage: Storage, environment: Environment
    ) -> None:
        async def count(broker: Storage) -> None:
            left = 10
            while left:
                document = await broker.load("counter", "x")
                value, version = (b"0", 0) if document is None else (document.value, document.version)
                try:
                    await broker.save("counter", "x", b"%d" % (int(value) + 1), expected_version=version)
                except DocumentConflict:
                    continue
                left -= 1

        async with environment.open() as other, trio.open_nursery() as nursery:
            for broker in (storage, other, storage, other):
                nursery.start_soon(count, broker)

        assert Document(b"40", 40) == await storage.load("counter", "x")

    async def test_conflict_has_what_the_next_save_needs(self, storage: Storage) -> None:
        await storage.save("k", "x", b"", expected_version=0)
        with pytest.raises(DocumentConflict) as conflict:
            await storage.save("k", "x", b"1", expected_version=0)

        assert conflict.value.current is not None
        assert 2 == await storage.save("k", "x", b"2", expected_version=conflict.value.current.version)

    async def test_document_is_saved_in_the_present_incarnation(self, storage: Storage) -> None:
        incarnation = storage.incarnation("group", "g")
        version = await storage.save_in(incarnation, "group", "g", b"one", expected_version=0)

        assert (await storage.load("group", "g")) == Document(b"one", version)
        with pytest.raises(DocumentConflict) as conflict:
            await storage.save_in(incarnation, "group", "g", b"two", expected_version=version + 1)
        assert Document(b"one", version) == conflict.value.current
        assert incarnation == storage.incarnation("group", "g")

    async def test_epochs_of_coordinators_rise_over_all_brokers(
        self, storage: Storage, environment: Environment
    ) -> None:
        first = await storage.fence("transaction", "t1")
        async with environment.open() as other:
            epochs = [first, await other.fence("transaction", "t1"), await storage.fence("transaction", "t1")]

        assert [1, 2, 3] == epochs
        assert 1 == await storage.fence("transaction", "t2")
        assert 1 == await storage.fence("others", "t1")

    async def test_epochs_of_coordinators_leave_documents_unchanged(self, storage: Storage) -> None:
        await storage.fence("k", "x")
        missing = await storage.load("k", "x")
        await storage.save("k", "x", b"1", expected_version=0)
        epoch = await storage.fence("k", "x")
        await storage.save("k", "x", b"2", expected_version=1)

        assert missing is None
        assert 2 == epoch
        assert Document(b"2", 2) == await storage.load("k", "x")
        assert 3 == await storage.fence("k", "x")

    async def test_documents_of_a_kind_are_listed(self, storage: Storage) -> None:
        for key in ("alice", "bob", "größe", "a:b", ""):
            await storage.save("users", key, b"1", expected_version=0)
        await storage.save("others", "carol", b"1", expected_version=0)
        await storage.save("users", "bob", None, expected_version=1)

        assert {"alice", "größe", "a:b", ""} == set(await storage.documents("users"))
        assert {"carol"} == set(await storage.documents("others"))
        assert set() == set(await storage.documents("nothing"))

    async def test_parts_are_saved_with_their_document(self, storage: Storage) -> None:
        binary = bytes(range(256))
        await storage.save_parts(
            "k", "x", b"head", {"a": binary, "größe:🔑": b"", "c": b"3"}, expected_version=0
        )
        version = await storage.save_parts("k", "x", b"new", {"c": None, "d": b"4"}, expected_version=1)
        unchanged = await storage.save_parts("k", "x", b"new", {}, expected_version=2)

        assert (2, 3) == (version, unchanged)
        assert (Document(b"new", 3), {"a": binary, "größe:🔑": b"", "d": b"4"}) == await storage.load_parts(
            "k", "x"
        )
        assert ["x"] == list(await storage.documents("k"))

    async def test_document_without_parts_is_loaded_with_none(self, storage: Storage) -> None:
        missing = await storage.load_parts("k", "x")
        await storage.save("k", "x", b"1", expected_version=0)
        await storage.fence("k", "x")

        assert missing is None
        assert (Document(b"1", 1), {}) == await storage.load_parts("k", "x")

    async def test_conflict_changes_no_part_and_has_the_head(self, storage: Storage) -> None:
        with pytest.raises(DocumentConflict) as missing:
            await storage.save_parts("k", "x", b"head", {"a": b"1"}, expected_version=1)
        await storage.save_parts("k", "x", b"head", {"a": b"1"}, expected_version=0)
        with pytest.raises(DocumentConflict) as conflict:
            await storage.save_parts("k", "x", b"new", {"a": None, "b": b"2"}, expected_version=0)

        assert missing.value.current is None
        assert Document(b"head", 1) == conflict.value.current
        assert (Document(b"head", 1), {"a": b"1"}) == await storage.load_parts("k", "x")

    async def test_saving_or_deleting_a_whole_document_removes_its_parts(self, storage: Storage) -> None:
        await storage.save_parts("k", "x", b"head", {"a": b"1", "b": b"2"}, expected_version=0)
        await storage.fence("k", "x")
        await storage.save("k", "x", b"whole", expected_version=1)
        whole = await storage.load_parts("k", "x")
        await storage.save_parts("k", "x", b"head", {"c": b"3"}, expected_version=2)
        await storage.save("k", "x", None, expected_version=3)
        await storage.save_parts("k", "x", b"other", {}, expected_version=0)

        assert (Document(b"whole", 2), {}) == whole
        assert (Document(b"other", 1), {}) == await storage.load_parts("k", "x")

    async def test_many_parts_are_saved_at_once(self, storage: Storage) -> None:
        parts = {f"m:{number}": b"%d" % number * 50 for number in range(5000)}
        await storage.save_parts("k", "x", b"head", parts, expected_version=0)
        await storage.save_parts("k", "x", b"", dict.fromkeys(list(parts)[1:]), expected_version=1)

        assert (Document(b"", 2), {"m:0": b"0" * 50}) == await storage.load_parts("k", "x")
