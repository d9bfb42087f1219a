"""Programs crossed with the ways to run them and with what surrounds them, each held against plain torch in float64.

`python -m tests.combinations` runs all of it in worker processes and writes a report; `tests/test_combinations.py` runs
a sample in which every program meets every way, and every way every surrounding.
"""
