"""Consumer groups: state machines that take the time as an argument, and the coordinator that runs them.

Nothing here knows sockets or wire frames.
"""
