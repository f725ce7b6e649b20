"""A storage backend for korvet: one SQLite file, named by a URL such as `sqlite:orders.db`."""

from __future__ import annotations

from .storage import SQLiteStorage, open_sqlite

__all__ = ["SQLiteStorage", "open_sqlite"]
