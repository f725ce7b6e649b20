"""The scenarios: a module per family of APIs, and sessions of clients. Importing the modules declares them."""

from conformance.scenarios import (
    cluster,
    configs,
    fetch,
    groups,
    offsets,
    positions,
    produce,
    sessions,
    topics,
)

__all__ = ["cluster", "configs", "fetch", "groups", "offsets", "positions", "produce", "sessions", "topics"]
