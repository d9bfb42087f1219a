"""torchvision's operators where its wheel for CUDA is installed beside a torch without CUDA.

That wheel's library does not load there, and importing torchvision, as timm and others do, raises an error. The
operators are then written in torch, for all ways to run a program alike.
"""

from __future__ import annotations

import importlib.metadata

import torch

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def define_missing_operators() -> None:
    """Defines the operators that torchvision's import names, if it is there and cannot; `nms` alone has a kernel."""
    try:
        installed = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return
    if "+" in installed or torch.version.cuda is not None:
        return
    for name, schema in SCHEMAS.items():
        torch.library.define(f"torchvision::{name}", schema)
    torch.library.impl("torchvision::nms", "cpu", nms)


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The indices of boxes that overlap no box of a higher score by more than the threshold, best first."""
    x1, y1, x2, y2 = dets.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    width = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
    height = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
    shared = width * height
    over = (shared / (areas[:, None] + areas - shared) > iou_threshold).tolist()
    kept: list[int] = []
    for box in scores.argsort(descending=True, stable=True).tolist():
        if not any(over[other][box] for other in kept):
            kept.append(box)
    return torch.tensor(kept, dtype=torch.int64)
