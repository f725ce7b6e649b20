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
    offsets,
    produce,
    quotas,
    sasl,
    sessions,
    share_groups,
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
    "offsets",
    "produce",
    "quotas",
    "sasl",
    "sessions",
    "share_groups",
    "topics",
    "transactions",
]
