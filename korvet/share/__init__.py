"""Share groups (KIP-932): the state of the records that a group has in flight in a partition.

Nothing here knows sockets or wire frames.
"""
