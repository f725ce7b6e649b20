"""`korvet lake run`: keep the tables of many topics up to date in one process, each by its policy.

`policy` reads policies from lake.toml and topic settings, `schedule` decides what is due (pure), `runner` does it with
the archive, decode, mirror and upkeep of the lake.
"""
