"""The table of libraries: the requirement that pip installs, the program, and what it may do otherwise, with reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

from .run import WAYS

TOLERANCE = 1e-4
"""How far a curve may be from plain torch's, of the largest number in it, where a row does not say otherwise."""


@dataclass(frozen=True)
class Row:
    """A library and its program, the module of the same name in `programs`.

    Attributes:
        requirement: what pip installs.
        about: what the program does.
        tolerance: of the curve.
        why: the reason for a tolerance over the default.
        ways: the ways in which it is run.
        reasons: why a way fails, for ways that do.
        limit: the seconds that a way may take.
    """

    requirement: str
    about: str
    tolerance: float = TOLERANCE
    why: str = ""
    ways: tuple[str, ...] = WAYS
    reasons: dict[str, str] = field(default_factory=dict)
    limit: float = 300.0


_EAGER = ("plain", "device")

ROWS: dict[str, Row] = {
    "lightning": Row("lightning", '`Trainer`: a compiled module, `accelerator="jax"`, checkpoints'),
    "transformers": Row("transformers", "`Trainer` with a small Llama"),
    "accelerate": Row("accelerate", "`prepare`, accumulated gradients, clipping, a saved state"),
    "timm": Row("timm", "the training loop with a moving average of weights"),
    "safetensors": Row("safetensors", "models and tensors, saved and loaded", ways=_EAGER),
}
"""The rows by name."""

WITHOUT_DEPENDENCIES: dict[str, str] = {}
"""Requirements that pip installs without what they depend on, and why."""
