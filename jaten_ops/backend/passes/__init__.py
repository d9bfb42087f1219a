"""Passes: rewrites of a captured graph, one module each."""
