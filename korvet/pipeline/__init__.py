"""The Spark jobs: reading and writing topics as DataFrames, archiving them to lake tables, and back."""
