from __future__ import annotations

from korvet.storage.interface import Storage
from korvet.storage.proxy import StorageProxy


def test_every_method_is_forwarded() -> None:
    names = {name for name in dir(Storage) if not name.startswith("_")}

    assert [] == sorted(names - vars(StorageProxy).keys())
