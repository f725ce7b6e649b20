"""Tasks on Trio: background tasks, and long work in time slices.

This package must not import korvet's other packages, except `korvet.protocol`.
"""
