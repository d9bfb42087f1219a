"""Tests of `jaten_ops.export`."""
