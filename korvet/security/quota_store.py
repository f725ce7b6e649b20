"""The client quotas of all brokers on a store, in one document."""

from __future__ import annotations

from typing import Any

from korvet.security.quotas import Quotas, entity_of, validate_alteration
from korvet.security.shared_document import SharedDocument


class QuotaStore(SharedDocument[Quotas]):
    """The stored quotas."""

    kind = "quotas"
    noun = "entities with quotas"

    @staticmethod
    def as_json(value: Quotas) -> list[Any]:
        return [[dict(entity), values] for entity, values in value.items()]

    @staticmethod
    def from_json(elements: list[Any]) -> Quotas:
        quotas = {
            entity_of({str(kind): None if name is None else str(name) for kind, name in names.items()}): {
                str(key): float(value) for key, value in values.items()
            }
            for names, values in elements
        }
        for entity, values in quotas.items():
            validate_alteration(entity, values)
        return quotas
