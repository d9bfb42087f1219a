"""How fast jaten is, against eager PyTorch, Inductor and hand-written JAX: `python -m benchmarks --help`."""
