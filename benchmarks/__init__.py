"""Benchmarks of jaten against eager PyTorch, Inductor and hand-written JAX: `python -m benchmarks --help`."""

import os

# JAX's LAPACK is scipy's, whose own threads would wait for each other on the one core that the benchmarks use
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
