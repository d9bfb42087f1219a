"""`Exported`, a program with its state, and the folder that holds it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.export
import torch
from torch.utils import _pytree as pytree

from ..arrays import bridge
from ..errors import UnsupportedInputError
from ..tensor.tensor import array_of
from ..xla.x64 import Enabled
from . import loader

save_file: Any
try:
    from safetensors.torch import save_file
except ImportError:  # only `save` needs it
    save_file = None

_LOADER = "load.py"
_BYTES_A_FILE = 5 * 10**9


class Exported:
    """A program without torch, with the tensors by which it computes.

    Attributes:
        signature: what is in `signature.json`: names, dtypes, shapes and structures of inputs and results, the names
            of the state, and the platforms.
        stablehlo: the text of the program in StableHLO.

    Example:
        >>> exported = jaten_ops.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> exported.call(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self, exported: jax.export.Exported, signature: dict[str, Any], state: dict[str, torch.Tensor]
    ) -> None:
        self._exported, self._state = exported, state
        self.signature = signature | {"files": _files(state)}
        self._program: Any = None

    @property
    def stablehlo(self) -> str:
        return self._exported.mlir_module()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on this process's first platform of JAX, as the loader of a saved folder does.

        Args:
            args, kwargs: as those of the function that was exported, with tensors of any device or arrays. A program
                that draws random numbers also takes `seed`, an int.

        Returns:
            The results in the structure of the function's: tensors of the CPU, or arrays if any array was given.

        Raises:
            TypeError: arguments of another structure, dtype or shape than it was exported for.
        """
        if self._program is None:
            with Enabled():
                state = {name: _array(tensor).copy() for name, tensor in self._state.items()}
            self._program = loader.Program(self.signature, self._exported, state)
        leaves = pytree.tree_leaves((args, kwargs))
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: _array(t.detach().cpu()), (args, kwargs))
        with Enabled():
            results = self._program(*args, **kwargs)
        if any(isinstance(leaf, jax.Array) for leaf in leaves):
            return results
        return pytree.tree_map_only(jax.Array, bridge.to_host, results)

    def save(self, folder: str | Path) -> None:
        """Writes a folder: `program.bin`, `weights.safetensors`, `signature.json`, and `load.py`, which loads it.

        `load.py` needs jax, safetensors and flatbuffers, and neither torch nor jaten: `from load import load`.

        Raises:
            ModuleNotFoundError: safetensors is not installed (`pip install jaten-ops[export]`).
            UnsupportedInputError: a tensor of the state has a dtype that its file cannot hold, such as complex64.
        """
        if save_file is None:
            raise ModuleNotFoundError("Exported.save writes weights by safetensors. Fix: pip install safetensors")
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name, tensor in self._state.items():
            if tensor.is_complex() or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
                got = f"{name} of {tensor.dtype}"
                raise UnsupportedInputError(
                    "the state of a program to save", got, "a dtype that safetensors has for JAX"
                )
        for file, names in self.signature["files"].items():  # one at a time is in memory
            save_file({name: self._state[name].detach().cpu().contiguous().clone() for name in names}, path / file)
        (path / "program.bin").write_bytes(self._exported.serialize())
        (path / "signature.json").write_text(json.dumps(self.signature, indent=1), encoding="utf-8")
        shutil.copyfile(loader.__file__, path / _LOADER)


def _array(tensor: torch.Tensor) -> jax.Array:
    return array_of(tensor) if tensor.device.type == "jax" else bridge.uncommitted(tensor.detach())


def _files(state: dict[str, torch.Tensor]) -> dict[str, list[str]]:
    """Names of files of weights, and which are in each."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, tensor in state.items():
        size += tensor.numel() * tensor.dtype.itemsize
        if size > _BYTES_A_FILE and parts[-1]:
            parts.append([])
            size = tensor.numel() * tensor.dtype.itemsize
        parts[-1].append(name)
    if len(parts) == 1:
        return {"weights.safetensors": parts[0]}
    return {f"weights-{i:05}-of-{len(parts):05}.safetensors": names for i, names in enumerate(parts, 1)}
