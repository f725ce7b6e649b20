"""The features of the brokers (KIP-584): all brokers finalize the newest level that they serve."""

from __future__ import annotations

from korvet.storage.interface import StorageInfo

#: The features, in the order of Kafka's response to ApiVersions, and their levels.
GROUP_VERSION, SHARE_VERSION = ("group.version", 1), ("share.version", 1)
TRANSACTION_VERSION = ("transaction.version", 2)


def features_of(store: StorageInfo) -> list[tuple[str, int]]:
    """Return the features that a broker on the store serves, with their finalized and highest level."""
    if store.serves_transactions:
        return [GROUP_VERSION, TRANSACTION_VERSION, SHARE_VERSION]
    return [GROUP_VERSION, SHARE_VERSION]
