"""A whole training step, with its backward pass and its optimizer, as one XLA executable."""

from .compiled import Step, compile_step

__all__ = ["Step", "compile_step"]
