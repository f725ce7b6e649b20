"""Authentication and authorization: SASL and the credentials of users, ACLs and the authorizer that decides by them.

`plain.py`, `scram.py` and `oauthbearer.py` are SASL mechanisms without IO. `users.py` and `acl_store.py` read and write
the store. This package must not use sockets, wire messages or handlers.
"""
