"""Work that goes on beside requests: retention, compaction, and the leases under which one of several brokers does it.

Nothing here knows the protocol.
"""
