"""Torch's results for a convolution and its two gradients."""

import torch
from torch import Tensor

from jaten_ops.cpu.conv_nchw import Windows

PARTS = ("forward", "input_gradient", "weight_gradient")
_CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


def convolved(image: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    _, stride, padding, dilation, groups = windows
    return _CONVOLVE[len(windows.kernel)](image, weight, None, stride, padding, dilation, groups)


def parts_of(image: Tensor, weight: Tensor, windows: Windows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """For each part its two operands, as `kernels.correlation` names them, and its result; random for the gradient."""
    image, weight = image.requires_grad_(), weight.requires_grad_()
    out = convolved(image, weight, windows)
    grad = torch.randn(out.shape, dtype=out.dtype)
    by_image, by_weight = torch.autograd.grad(out, (image, weight), grad)
    results = (image, weight, out), (grad, weight, by_image), (image, grad, by_weight)
    return dict(zip(PARTS, results, strict=True))
