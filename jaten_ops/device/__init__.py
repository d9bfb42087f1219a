"""The device `jax`: torch's PrivateUse1 slot, `torch.jax`, streams, generators, autocast, and backward passes on it."""
