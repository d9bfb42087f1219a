"""Reads the operators of the installed torch and refreshes jaten's generated rows and its coverage table."""
