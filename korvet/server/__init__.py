"""Sockets and the life of the process: listen, serve connections, start, drain and end.

This package must not interpret requests, which is the task of `korvet.handlers`.
"""
