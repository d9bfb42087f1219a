"""Patches of torch and JAX: a ledger with a row for each, and the functions that are put in."""
