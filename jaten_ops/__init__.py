"""jaten: every ATen operator as a `torch.library` custom op whose body is a JAX kernel."""

from . import autocast, device_ops  # noqa: F401  # register what the device does
from .custom import op
from .errors import JatenError
from .registry import fake, gradient, kernel
from .tensor import Tensor

__all__ = ["JatenError", "Tensor", "fake", "gradient", "kernel", "op"]
