"""Tests of `jaten_ops.distributed`."""
