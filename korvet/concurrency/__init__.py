"""Tasks on Trio: background tasks, and long work in time slices.

Nothing here knows korvet's other packages, but for the steps of `korvet.protocol.steps`.
"""
