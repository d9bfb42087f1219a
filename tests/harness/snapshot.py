"""Run as a script in a fresh interpreter: prints which attributes of torch and JAX jaten changes, as JSON.

It compares all loaded modules of the two, and all classes in them, after an import of jaten_ops, of its backend, and a
use of all of it. Lazy changes that torch makes itself are triggered before, without jaten.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

import jax
import torch

ROOTS = ("torch", "jax", "jaxlib", "functorch")
LOADED = (
    *("torch._dynamo.variables.higher_order_ops", "torch._functorch._aot_autograd.autograd_cache"),
    *("torch._higher_order_ops", "torch._inductor.compile_fx", "torch.distributed.checkpoint", "torch.export"),
    *("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.fx.experimental.proxy_tensor"),
    *("torch.nn.attention.flex_attention", "torch.nn.utils.parametrize", "torch.profiler", "torch.testing"),
    *("jax.experimental.serialize_executable", "jax.experimental.shard_map", "jax.extend", "jax.scipy.special"),
)


class Snapshot:
    """Every attribute of every loaded module and class of torch and JAX."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.contents: dict[str, tuple[Any, Any]] = {}
        self.owners: set[str] = set()
        for name, module in list(sys.modules.items()):
            if _is_of_roots(name) and isinstance(module, types.ModuleType):
                self._look_at(name, f"{name}:", module)
        for name, op in torch._ops._higher_order_ops.items():
            for table in ("python_key_table", "py_kernels"):
                held = vars(op)[table]
                self.contents[f"torch.ops:higher_order.{name}.{table}"] = held, _content(held)

    def _look_at(self, owner: str, prefix: str, looked_at: Any) -> None:
        if owner in self.owners:
            return
        self.owners.add(owner)
        for name, value in list(vars(looked_at).items()):
            self.values[prefix + name] = value
            if type(value) in (dict, list, set) and not name.startswith("__"):
                self.contents[prefix + name] = value, _content(value)
            if isinstance(value, type) and _is_of_roots(str(getattr(value, "__module__", ""))):
                cls = f"{value.__module__}:{value.__qualname__}"
                self._look_at(cls, f"{cls}.", value)

    def changes(self, before: Snapshot, *, code: bool) -> list[str]:
        """The attributes that have changed, all of them or only code."""
        found = []
        for key in before.values.keys() | self.values.keys():
            old, new = before.values.get(key, _ABSENT), self.values.get(key, _ABSENT)
            is_other = old is not new and _owner(key) in before.owners and not _is_import(old, new)
            if is_other and (not code or _is_code(old) or _is_code(new)) and _DYNAMO_KEEPS not in key:
                found.append(key)
        return sorted(found)

    def fills(self, before: Snapshot) -> list[str]:
        """The dictionaries, lists and sets whose entries have changed."""
        found = self.contents
        old = before.contents.items()
        return sorted(k for k, (v, held) in old if k in found and found[k][0] is v and found[k][1] != held)


_ABSENT = object()
_DYNAMO_KEEPS = "torch._dynamo.external_utils:__compiled_fn_"  # contains every function that any backend has compiled


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        return {id(k): id(v) for k, v in value.items()}
    return [*map(id, value)]


def _is_of_roots(name: str) -> bool:
    return name.partition(".")[0] in ROOTS


def _owner(key: str) -> str:
    return key.rpartition(".")[0] if "." in key.partition(":")[2] else key.partition(":")[0]


def _is_import(old: Any, new: Any) -> bool:
    """True if the change is that a module was imported."""
    return old is _ABSENT and isinstance(new, types.ModuleType) and new.__spec__ is not None


def _is_code(value: Any) -> bool:
    """True for functions, classes and properties; not for counts, caches or lists that torch itself keeps."""
    return callable(value) or isinstance(value, property | staticmethod | classmethod)


def _train(device: str, backend: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.1)).to(device)
    optimizer = torch.optim.AdamW(module.parameters())
    compiled = torch.compile(module, backend=backend)
    for rows in (2, 3):
        compiled(torch.ones(rows, 3, device=device)).sum().backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(module, Path(folder) / "module")
        torch.load(Path(folder) / "module", weights_only=False)


def main() -> dict[str, list[str]]:
    """The changes that each step makes, in order."""
    warnings.simplefilter("ignore")  # deprecated names of torch's are looked at, too
    for name in LOADED:
        importlib.import_module(name)
    _train("cpu", "aot_eager")
    jax.jit(jax.grad(lambda x: x * x))(2.0)
    before = Snapshot()
    import jaten_ops  # noqa: PLC0415  # what is measured

    imported = Snapshot()
    importlib.import_module("jaten_ops.backend")
    loaded = Snapshot()
    _train("cpu", "jaten")
    _train("jax", "jaten")
    _train("jax", "eager")
    x = torch.ones(3, device="jax")
    jax.jit(jaten_ops.as_jax(torch.sin))(jaten_ops.to_jax(x))
    for asked in sys.modules["jaten_ops.device.torch_jax"].ASKED.values():  # as torch does for a random DTensor
        asked()
    used = Snapshot()
    return {
        "import": imported.changes(before, code=False),
        "backend": loaded.changes(imported, code=False),
        "use": used.changes(loaded, code=True),
        "fills": imported.fills(before),
        "off": sorted(sys.modules["jaten_ops.hooks.ledger"].OFF),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
