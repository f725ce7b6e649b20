"""What a handler may touch: topics and their rules, alterations, limits, counters, and the broker that joins them.

Nothing here knows sockets or wire frames.
"""
