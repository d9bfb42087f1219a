"""The cases: each model twice, as a plain torch module and as a plain JAX function of the same weights."""

from . import decoders, drawn, encoders, graph, mobile, recurrent, resnet, small, unet
from .case import Case

FAMILIES = (small, resnet, mobile, unet, encoders, decoders, recurrent, graph)

CASES: dict[str, Case] = {case.name: case for family in FAMILIES for case in family.CASES}


def case_of(name: str) -> Case:
    """A case by its name; "timm:resnet10t" and the like are drawn ones."""
    return drawn.case(name) if ":" in name else CASES[name]


__all__ = ["CASES", "Case", "case_of", "drawn"]
