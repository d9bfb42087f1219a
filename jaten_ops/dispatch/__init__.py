"""Handlers: for each ATen operator, the function that runs it on tensors of the device `jax`."""
