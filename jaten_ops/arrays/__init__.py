"""The values of tensors on the device `jax`: arrays, views of them, and the way to and from torch's memory."""
