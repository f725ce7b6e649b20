"""The features of the brokers (KIP-584): all brokers finalize the newest level that they serve."""

from __future__ import annotations

from korvet.storage.interface import StorageInfo

#: The features, in the order of Kafka's response to ApiVersions, and their levels.
GROUP_VERSION, TRANSACTION_VERSION = ("group.version", 1), ("transaction.version", 2)


def features_of(store: StorageInfo) -> list[tuple[str, int]]:
    """Return the features that a broker on the store serves, with their finalized and highest level."""
    return [GROUP_VERSION, TRANSACTION_VERSION] if store.serves_transactions else [GROUP_VERSION]
