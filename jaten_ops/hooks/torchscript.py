"""TorchScript with tensors of the device `jax`.

In TorchScript, C++ keeps a module's tensors, reads and writes their storages. A storage of the device has no bytes
there, so modules are saved as the CPU's and moved when they are loaded.
"""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import torch
from torch.jit import RecursiveScriptModule
from torch.utils._pytree import tree_leaves

from ..ops.namespace import define
from ..tensor.tensor import Tensor


def with_slots(apply: Any) -> Any:
    """`ScriptModule._apply`, which writes moved tensors to the module's slots in C++."""

    def call(module: RecursiveScriptModule, fn: Any, recurse: bool = True) -> RecursiveScriptModule:
        return _apply_to_slots(apply, module, fn, recurse)

    return call


def _apply_to_slots(apply: Any, module: RecursiveScriptModule, fn: Any, recurse: bool) -> RecursiveScriptModule:
    """`_apply` of modules, which also stores parameters that have got another C++ tensor in their slots again."""
    slots = dict(module._parameters.items())
    classes = {id(parameter): type(parameter) for parameter in slots.values()}
    for name, (kind, _) in module._concrete_type.get_attributes().items():
        if str(kind) == "List[Tensor]":  # such as weights of recurrent layers
            listed = module._c.getattr(name)
            if classes.keys() >= {id(parameter) for parameter in listed}:
                slots[name] = listed
    apply(module, fn, recurse)
    for name, value in slots.items():
        if any(type(parameter) is not classes[id(parameter)] for parameter in tree_leaves(value)):
            module._c.setattr(name, value)
    return module


def _on_cpu(module: RecursiveScriptModule) -> RecursiveScriptModule:
    """A deep copy whose parameters are leaves, unlike in torch's own."""
    with torch.no_grad():
        moved = copy.deepcopy(module).cpu()
    for old, new in zip(module.parameters(), moved.parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    return moved


def saved_from_cpu(save: Any) -> Any:
    """A method that saves a module; one on the device is saved as on the CPU."""

    @functools.wraps(save)
    def call(module: RecursiveScriptModule, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(tensor, Tensor) for tensor in (*module.parameters(), *module.buffers())):
            module = _on_cpu(module)
        try:
            return save(module, *args, **kwargs)
        except RuntimeError as error:
            if "a storage on jax" not in str(error):
                raise
            remedy = "freeze it on the CPU, save that, and load it with map_location='jax'"
            raise RuntimeError(
                f"the module has constants on the device jax, which cannot be saved: {remedy}"
            ) from error

    return call


_UNKNOWN = re.compile(r"Unknown builtin op: jaten::(\w+)")


def loaded_and_moved(load: Any) -> Any:
    """`torch.jit.load`, also with `map_location="jax"`."""

    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        wanted = None if map_location is None else torch.device(map_location)
        if wanted is None or wanted.type != "jax":
            return _with_operators(load, f, map_location, *args, **kwargs)
        return _with_operators(load, f, "cpu", *args, **kwargs).to(wanted)

    return call


def _with_operators(load: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    """Loads a program; missing jaten operators in it are defined one by one."""
    begin = f.tell() if hasattr(f, "tell") else None
    while True:
        try:
            return load(f, *args, **kwargs)
        except RuntimeError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or not define(unknown[1]):
                raise
        if begin is not None:
            f.seek(begin)
