"""A partition's log as clients see it: the records in storage, and before them the records in the lake's tables.

This package must not import libraries that read tables. A separate process does that.
"""
