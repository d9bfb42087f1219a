"""`jaten_ops.Tensor`, the tensor of the device `jax`, with its storage, subclasses and lazy parameters."""
