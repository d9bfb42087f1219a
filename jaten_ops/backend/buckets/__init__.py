"""Sizes that are rounded up: one executable for many of them, whose results see nothing of what is added."""
