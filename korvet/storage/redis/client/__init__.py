"""Connections to Redis: bytes, replies, errors, and reconnecting.

Nothing here knows topics or records.
"""
