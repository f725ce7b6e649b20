"""A private Valkey or Redis in a folder, for `embedded:PATH`.

Nothing here knows what is stored.
"""
