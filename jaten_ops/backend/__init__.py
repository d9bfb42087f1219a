"""`torch.compile(model, backend="jaten")`: graphs of `jaten::` ops as XLA executables."""

from .capture import jaten

__all__ = ["jaten"]
