"""What every broker is asked: a module for each family of APIs, and sessions of clients. Importing declares them."""

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
