"""Storage of records, committed offsets and small documents: the interface, its rules, and the backends.

Nothing here knows the protocol's messages; `korvet.storage.open` finds a backend by its URL.
"""
