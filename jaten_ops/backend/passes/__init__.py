"""Passes: rewrites of a captured graph, a module each."""
