"""The cases: each model twice, as a plain torch module and as a plain JAX function of the same weights."""

from . import decoders, encoders, graph, mobile, recurrent, resnet, small, unet
from .case import Case

FAMILIES = (small, resnet, mobile, unet, encoders, decoders, recurrent, graph)

CASES: dict[str, Case] = {case.name: case for family in FAMILIES for case in family.CASES}

__all__ = ["CASES", "Case"]
