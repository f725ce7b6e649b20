"""Authorization: ACLs, the authorizer that decides by them, and their document in the store.

This package must not use sockets, wire messages or handlers.
"""
