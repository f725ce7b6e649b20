"""The archive of a topic as a Delta table: its files, its commits, and reading, compacting and erasing its records.

Nothing in this package imports Spark.
"""
