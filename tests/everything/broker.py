"""A broker with every option that touches the path of records."""

from __future__ import annotations
