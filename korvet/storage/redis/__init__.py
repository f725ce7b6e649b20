"""The parts of the Redis backend, which `korvet.storage.redis_streams` joins.

Nothing here knows the protocol's messages.
"""
