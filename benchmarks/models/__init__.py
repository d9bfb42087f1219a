"""The cases: each model twice, as a plain torch module and as a plain JAX function of the same weights."""

import argparse

from . import decoders, drawn, encoders, graph, mobile, recurrent, resnet, small, unet
from .case import Case

FAMILIES = (small, resnet, mobile, unet, encoders, decoders, recurrent, graph)

CASES: dict[str, Case] = {case.name: case for family in FAMILIES for case in family.CASES}


def case_of(name: str) -> Case:
    """A case by its name; "timm:resnet10t" and the like are drawn ones."""
    return drawn.case(name) if ":" in name else CASES[name]


def known_name(name: str) -> str:
    """The name of a case, as an argument of a command.

    Raises:
        argparse.ArgumentTypeError: there is none of that name.
    """
    if ":" not in name and name not in CASES:
        raise argparse.ArgumentTypeError(f"{name}: there is no such case; there are {', '.join(CASES)}")
    return name


__all__ = ["CASES", "Case", "case_of", "drawn", "known_name"]
