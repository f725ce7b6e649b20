"""A partition's log as clients see it: the storage, and before it the lake's tables.

`remote` must not import what reads tables: a process of its own does that.
"""
