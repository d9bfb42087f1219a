"""The order in which the dimensions of a program's values lie in memory, chosen before XLA sees the program.

torch's images are (batch, channels, height, width). XLA's CPU convolutions take channels last, and a transposition
around each costs time. Here a program is rewritten so that transpositions are not made but noted, and
everything between convolutions is computed in the order that they leave. Functions of small images, and what an
optimizer computes with small weights, are computed in longer rows.
"""

from .program import ordered
from .serialize_lapack import has_turns, in_turn
from .short_rows import flattened
from .values import Order, program_order

__all__ = ["Order", "flattened", "has_turns", "in_turn", "ordered", "program_order"]
