"""Tests of korvet; the folders mirror the package."""
