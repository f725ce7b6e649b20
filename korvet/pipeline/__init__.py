"""Spark's data source named `korvet` for topics, and the jobs that use it.

The broker imports nothing from this package. Spark finds it through `pyspark_korvet`. Workers unpickle
objects of this package, so every worker needs korvet installed (or shipped with `--py-files`).
"""
