"""Torch programs as StableHLO with their state, for processes without torch."""

from .artifact import Exported
from .programs import export

__all__ = ["Exported", "export"]
