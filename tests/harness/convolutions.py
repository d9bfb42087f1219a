"""Torch's results for a convolution and its two gradients; and the convolutions in a traced program for a CPU."""

from typing import Any

import torch
from torch import Tensor

from jaten_ops.cpu.conv_primitive import convolution_p
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows
from jaten_ops.xla.platform_branches import cpu_branch

PARTS = ("forward", "input_gradient", "weight_gradient")
_CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


def convolved(image: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    _, stride, padding, dilation, groups = windows
    return _CONVOLVE[len(windows.kernel)](image, weight, None, stride, padding, dilation, groups)


def parts_of(image: Tensor, weight: Tensor, windows: Windows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """For each part its two operands, as in `kernel_base.conv_parts`, and its result; the gradient is random."""
    image, weight = image.requires_grad_(), weight.requires_grad_()
    out = convolved(image, weight, windows)
    grad = torch.randn(out.shape, dtype=out.dtype)
    by_image, by_weight = torch.autograd.grad(out, (image, weight), grad)
    results = (image, weight, out), (grad, weight, by_image), (image, grad, by_weight)
    return dict(zip(PARTS, results, strict=True))


def calls_of(jaxpr: Any) -> list[ConvCall]:
    """The convolutions in a traced program, and in the programs inside it, that a CPU's rewrites recognize."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is convolution_p:
            found.append(equation.params["call"])
        branch = cpu_branch(equation)
        values = equation.params.values() if branch is None else [branch]
        bodies = [b for v in values for b in (v if isinstance(v, tuple | list) else [v])]
        for body in bodies:
            inner = getattr(body, "jaxpr", body)
            if hasattr(inner, "eqns"):
                found += calls_of(inner)
    return found
