"""Tests of korvet.storage: one contract for every backend, and what is particular to each."""
