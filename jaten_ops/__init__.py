"""jaten: every ATen operator as a `torch.library` custom op whose body is a JAX kernel."""

from . import dispatch  # noqa: F401  # registers the operators of the device
from .custom import op
from .errors import JatenError
from .registry import fake, gradient, kernel
from .tensor import Tensor

__all__ = ["JatenError", "Tensor", "fake", "gradient", "kernel", "op"]
