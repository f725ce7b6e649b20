"""Sockets and the life of the process: listen, serve connections, start, drain and end.

Nothing here knows what a request means; `korvet.handlers` does.
"""
