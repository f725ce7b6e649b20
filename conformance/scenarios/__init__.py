"""The scenarios: a module per family of APIs, and sessions of clients. Importing the modules declares them."""

from conformance.scenarios import (
    acls,
    cluster,
    commits,
    configs,
    consumer_groups,
    damage,
    fetch,
    groups,
    mixed_groups,
    offsets,
    produce,
    quotas,
    sasl,
    sessions,
    topics,
    transactions,
)

__all__ = [
    "acls",
    "cluster",
    "commits",
    "configs",
    "consumer_groups",
    "damage",
    "fetch",
    "groups",
    "mixed_groups",
    "offsets",
    "produce",
    "quotas",
    "sasl",
    "sessions",
    "topics",
    "transactions",
]
