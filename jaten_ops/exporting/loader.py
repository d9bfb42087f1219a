"""Loads a program that `jaten_ops.export` has saved: `load(folder)`. Needs jax, safetensors, flatbuffers."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

safe_open: Any
try:
    from safetensors import safe_open
except ImportError:  # only a folder needs it
    safe_open = None


def load(folder: str | Path) -> "Program":
    """The program in a folder, to be called as the exported function was, with arrays for its tensors."""
    if safe_open is None:
        raise ModuleNotFoundError("load reads weights by safetensors. Fix: pip install safetensors")
    folder = Path(folder)
    signature = json.loads((folder / "signature.json").read_text(encoding="utf-8"))
    exported = jax.export.deserialize(bytearray((folder / "program.bin").read_bytes()))
    places = _Places(signature["mesh"])
    state: dict[str, jax.Array] = {}
    for path, names in signature["files"].items():
        with jax.enable_x64(True), safe_open(folder / path, framework="flax") as file:
            state.update((name, places.read(file, name, signature["partitions"].get(name))) for name in names)
    return Program(signature, exported, state, places)


class _Places:
    """Puts arrays over the first devices, as many as the mesh of the program has; without a mesh where JAX does."""

    def __init__(self, mesh: dict[str, int] | None) -> None:
        self._mesh: Any = None
        if mesh is None:
            return
        names, sizes, devices = tuple(mesh), tuple(mesh.values()), jax.devices()
        if len(devices) < math.prod(sizes):
            raise RuntimeError(f"the program is for {math.prod(sizes)} devices ({mesh}), JAX has {len(devices)} here")
        kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
        self._mesh = jax.make_mesh(sizes, names, kinds, devices=devices[: math.prod(sizes)])

    def _sharding(self, partition: list[list[str]] | None) -> Any:
        spec = jax.sharding.PartitionSpec(*(tuple(axes) or None for axes in partition or ()))
        return jax.sharding.NamedSharding(self._mesh, spec)

    def put(self, array: jax.Array, partition: list[list[str]] | None) -> jax.Array:
        """An array moved to where the program takes it; without a mesh it stays where it is."""
        return array if self._mesh is None else jax.device_put(array, self._sharding(partition))

    def read(self, file: Any, name: str, partition: list[list[str]] | None) -> jax.Array:
        """An array of a file, of which each device reads its own part only."""
        if not partition:
            return file.get_tensor(name)
        part = file.get_slice(name)
        return jax.make_array_from_callback(tuple(part.get_shape()), self._sharding(partition), lambda i: part[i])


class Program:
    """A function of arrays. `state` has the arrays by which it computes; a call replaces those that it updates."""

    def __init__(
        self, signature: dict[str, Any], exported: Any, state: dict[str, jax.Array], places: "_Places | None" = None
    ) -> None:
        self.signature, self.exported = signature, exported
        self._places, self._run = places or _Places(signature["mesh"]), jax.jit(exported.call)
        partitions = signature["partitions"]
        self.state = {name: self._places.put(array, partitions.get(name)) for name, array in state.items()}

    def __call__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """Runs it; a program that draws random numbers needs a `seed`, an int."""
        given: dict[int, Any] = {}
        _match(self.signature["inputs"], [list(args), kwargs], given, "the arguments")
        if self.signature["random"] != (seed is not None):
            raise TypeError("seed: the program " + ("needs one, an int" if seed is None else "draws no random numbers"))
        wide = jax.config.read("jax_enable_x64")
        with jax.enable_x64(True):  # the program has types of 64 bits, whatever the caller has
            inputs = [self._input(given[i], spec) for i, spec in enumerate(self.signature["arrays"])]
            seeds = [] if seed is None else [self._places.put(jnp.asarray(seed, "int64"), None)]
            results = self._run([self.state[name] for name in self.signature["state"]], inputs, seeds)
            count = len(results) - len(self.signature["updated"])
            self.state.update(zip(self.signature["updated"], results[count:], strict=True))
            results = results[:count]
            if not wide:
                results = [r.astype(_NARROW.get(r.dtype.name, r.dtype)) for r in results]
        return _filled(self.signature["results"], results)

    def _input(self, value: Any, spec: dict[str, Any]) -> jax.Array:
        return self._places.put(_as_input(value, spec), spec.get("partition"))


_NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def _as_input(value: Any, spec: dict[str, Any]) -> jax.Array:
    array, wanted = jnp.asarray(value), spec["dtype"]
    if array.dtype.name != wanted and _NARROW.get(wanted) != array.dtype.name:
        raise TypeError(f"{spec['name']}: expected {wanted}, got {array.dtype.name}")
    fits = array.ndim == len(spec["shape"]) and all(
        isinstance(want, str) or want == size for want, size in zip(spec["shape"], array.shape, strict=True)
    )
    if not fits:
        raise TypeError(f"{spec['name']}: expected the shape {spec['shape']}, got {list(array.shape)}")
    return array.astype(wanted)


def _match(tree: Any, value: Any, found: dict[int, Any], where: str) -> None:
    """Puts the arrays of a value into `found` by their numbers; TypeError where it is not as exported."""
    kind, inner = tree
    if kind == "array":
        found[inner] = value
    elif kind == "constant":
        is_array = bool(getattr(value, "shape", ()))  # compared by each element
        if is_array or value != inner or isinstance(value, bool) != isinstance(inner, bool):
            raise TypeError(f"{where}: expected {inner!r}, as exported, got {value!r}")
    elif kind == "dict":
        if dataclasses.is_dataclass(value) and not hasattr(value, "keys"):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if not hasattr(value, "keys") or set(value) != set(inner):
            got = sorted(value) if hasattr(value, "keys") else type(value).__name__
            raise TypeError(f"{where}: expected the names {sorted(inner)}, got {got}")
        for name in inner:
            _match(inner[name], value[name], found, name)
    else:
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            number = len(value) if isinstance(value, list | tuple) else type(value).__name__
            raise TypeError(f"{where}: expected {len(inner)} values, got {number}")
        for i, (part, one) in enumerate(zip(inner, value, strict=True)):
            _match(part, one, found, f"{where}[{i}]")


def _filled(tree: Any, arrays: Any) -> Any:
    kind, inner = tree
    if kind == "array":
        return arrays[inner]
    if kind == "constant":
        return inner
    if kind == "dict":
        return {name: _filled(part, arrays) for name, part in inner.items()}
    return (tuple if kind == "tuple" else list)(_filled(part, arrays) for part in inner)
