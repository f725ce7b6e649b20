"""Authentication, authorization and quotas: SASL and the credentials of users, ACLs and the authorizer that decides by
them, and the rules for client quotas.

`plain.py`, `scram.py` and `oauthbearer.py` are SASL mechanisms without IO. `users.py`, `acl_store.py` and
`quota_store.py` read and write the store, `password_file.py` and `jwks.py` read files. This package must not use
sockets, wire messages or handlers.
"""
