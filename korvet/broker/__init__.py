"""The state behind all handlers: topics and their rules, alterations, limits, counters, and the broker that joins them.

This package must not use sockets or wire frames.
"""
