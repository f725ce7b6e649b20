"""Compact partitions: copy the latest record of each key to a new stream, in steps."""
