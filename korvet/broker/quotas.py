"""Client quotas of a broker: those in the store."""

from __future__ import annotations

from attrs import define, field

from korvet.security.quota_store import QuotaStore
from korvet.security.quotas import Quotas
from korvet.storage.interface import Storage


@define(eq=False)
class ClientQuotas:
    """The stored quotas."""

    _storage: Storage
    stored: QuotaStore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stored = QuotaStore(self._storage, self._changed)

    def _changed(self, quotas: Quotas) -> None:
        pass
