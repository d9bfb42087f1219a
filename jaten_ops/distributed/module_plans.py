"""Modules over a mesh: parameters are placed by a plan, and values between modules where the plan says so."""

from __future__ import annotations

import fnmatch
import functools
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ..arrays import partitioned
from ..arrays.abstract_arrays import AnyMesh
from ..arrays.placements import Layout, layout_of, mesh_axes_of
from ..device import privateuse1
from ..errors import UnsupportedInputError
from ..tensor.mesh_methods import constrained_by, place_gradient
from ..tensor.tensor import Tensor, array_of, from_array
from .packed_attention import WrappedForward, split_packed
from .styles import PARAMETER_WORDS, Style, ValuePlaces, WholeDim, style_of
from .tensors import distributed_array

_log = logging.getLogger(__name__)
_LEAST = 8  # elements a device: parameters of fewer are whole on each


def parallelize_module(module: torch.nn.Module, mesh: AnyMesh, plan: Any, axis: str = "model") -> torch.nn.Module:
    """Partitions a module over an axis of a mesh by a plan, in place.

    The module computes what it did: its inputs and results are whole tensors, whose parts are on the devices. It moves
    to the device `jax`; parameters that the plan does not name are copied to each device, unless they are partitioned
    over another axis already.

    Args:
        module: with parameters of any shape and dtype, on the CPU, on the device `jax`, or on "meta": see
            `fully_shard`.
        mesh: a mesh with the axis. Over a `jax.sharding.AbstractMesh` the parameters have no values: see `estimate`.
        plan: a dict from patterns of module names ("layers.*.mlp.up_proj") to `ColwiseParallel()`,
            `RowwiseParallel()`, `SequenceParallel()`, `PrepareModuleInput(...)`, `PrepareModuleOutput(...)` of
            `torch.distributed.tensor.parallel`, or to a word of Hugging Face's plans ("colwise", "rowwise", ...); and
            from patterns of parameter names to a `PartitionSpec`, whose axes are the mesh's. One such object is the
            plan of the module itself. "auto" is the model's own `tp_plan`.
        axis: the axis that the plan's entries partition over.

    Returns:
        The module.

    Raises:
        UnsupportedInputError: a pattern that names nothing, an axis that the mesh does not have, a `PartitionSpec` of
            more entries than dimensions, an entry that is not for such a module, "auto" for a model without a plan.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(model=-1)
        >>> block = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        >>> block = distributed.parallelize_module(block, mesh, {"0": "colwise", "2": "rowwise"})
        >>> block(torch.ones(4, 8, device="jax")).shape
        torch.Size([4, 8])
    """
    mesh = _checked(mesh, axis)
    layouts: dict[str, Layout] = {}
    for pattern, entry in _entries(module, plan).items():
        if isinstance(entry, PartitionSpec):
            for name in _matching(pattern, dict(module.named_parameters()), "parameter"):
                layouts[name] = layout_of(entry, mesh, name)
            continue
        found = _names(pattern, dict(module.named_modules()))
        if not found and entry in PARAMETER_WORDS:
            dim = PARAMETER_WORDS[entry]
            for name in _matching(pattern, dict(module.named_parameters()), "module or parameter"):
                layouts[name] = Layout(mesh, () if dim is None else ((dim, (axis,)),))
            continue
        for name in found or _matching(pattern, {}, "module"):
            part = module.get_submodule(name)
            style = style_of(entry, part, name or type(module).__name__)
            for parameter, _ in part.named_parameters(recurse=False):
                if parameter in style.parameters:
                    full = f"{name}.{parameter}".removeprefix(".")
                    layouts[full] = Layout(mesh, ((style.parameters[parameter], (axis,)),))
            _hook(part, style, mesh, axis)
    _place(module, mesh, layouts)
    split_packed(module, layouts)
    return module


def _checked(mesh: AnyMesh, axis: str) -> AnyMesh:
    privateuse1.require_slot()
    mesh = partitioned.auto_mesh(mesh)
    if axis not in mesh.axis_names:
        raise UnsupportedInputError("axis", repr(axis), f"an axis of the mesh, {mesh.axis_names}")
    return mesh


def _entries(module: torch.nn.Module, plan: Any) -> Mapping[str, Any]:
    if isinstance(plan, str) and plan == "auto":
        found = getattr(module, "_tp_plan", None) or getattr(
            getattr(module, "config", None), "base_model_tp_plan", None
        )
        if not found:
            raise UnsupportedInputError(
                'plan="auto"', f"a {type(module).__name__} without a tp_plan", "a dict from names to styles"
            )
        named = {*dict(module.named_modules()), *dict(module.named_parameters())}
        # a plan of a model's class names parts that not every configuration has
        return {pattern: entry for pattern, entry in found.items() if _names(pattern, dict.fromkeys(named))}
    return plan if isinstance(plan, Mapping) else {"": plan}


def _names(pattern: str, named: Mapping[str, Any]) -> list[str]:
    """The names that a pattern matches, part by part: a star stands for no dot."""
    parts = pattern.split(".")
    return [n for n in named if len(p := n.split(".")) == len(parts) and all(map(fnmatch.fnmatchcase, p, parts))]


def _matching(pattern: str, named: Mapping[str, Any], kind: str) -> list[str]:
    found = _names(pattern, named)
    if not found:
        raise UnsupportedInputError("the plan", f"{pattern!r}, which names no {kind}", "names as in named_modules()")
    return found


def fully_shard(module: torch.nn.Module, mesh: AnyMesh, axis: str = "data") -> torch.nn.Module:
    """Partitions each parameter of a module over an axis of a mesh, in place: along its largest dimension that divides.

    Parameters of a few elements, and those of which no dimension divides, are copied to each device. It composes with
    `parallelize_module` over another axis. Gradients, and the states of optimizers made afterwards, are partitioned as
    their parameters.

    Args:
        module: with parameters of any shape and dtype, on the CPU, on the device `jax`, or on "meta": then each device
            makes its own part of the parameters, and `reset_parameters()` of each module gives them values, or
            `_init_weights(module)` of the model, as Hugging Face's have it. The rest are zeros, and a log line names
            their modules: load them.
        mesh: a mesh with the axis, or an `AbstractMesh`, as for `parallelize_module`.
        axis: the axis.

    Returns:
        The module.

    Raises:
        UnsupportedInputError: an axis that the mesh does not have.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(data=-1)
        >>> model = distributed.fully_shard(torch.nn.Linear(64, 64), mesh)
        >>> model.weight.sharding.spec in (jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec("data", None))
        True
    """
    mesh = _checked(mesh, axis)
    layouts = {}
    for name, parameter in module.named_parameters():
        dim = _largest_dim(parameter, mesh, axis)
        layouts[name] = Layout(mesh, () if dim is None else ((dim, (axis,)),))
    _place(module, mesh, layouts)
    for part in module.modules():
        _gather_in_forward(part, mesh, axis)
    return module


def _gather_in_forward(module: torch.nn.Module, mesh: AnyMesh, axis: str) -> None:
    """Makes a module gather those of its parameters that are partitioned over an axis, while its forward runs.

    A batch and a weight that are partitioned over one axis could meet in two ways: the weight is gathered, or the batch
    is and the results are partitioned by features. The compiler would choose the latter as often.
    """
    had = module.__dict__.get("forward")  # of a part that was sharded before
    gathered = {axis, *had.axes} if isinstance(had, _GatheredForward) else {axis}
    texts: dict[str, tuple[str, str]] = {}
    for name, parameter in module.named_parameters(recurse=False):
        axes = _axes_now(parameter, mesh)
        if any(gathered & {*found} for found in axes):
            left = tuple((dim, tuple(a for a in found if a not in gathered)) for dim, found in enumerate(axes))
            own = tuple(enumerate(axes))
            texts[name] = Layout(mesh, own).text(), Layout(mesh, left).text()
    if isinstance(had, _GatheredForward):
        had.axes, had.texts = gathered, texts
    elif texts:
        module.forward = _GatheredForward(module, gathered, texts)


class _GatheredForward(WrappedForward):
    """The forward of a module, in which its parameters are gathered ones."""

    def __init__(self, module: torch.nn.Module, axes: set[str], texts: dict[str, tuple[str, str]]) -> None:
        super().__init__(module)
        self.axes, self.texts = axes, texts

    def tensors(self) -> dict[str, torch.Tensor]:
        gathered: dict[str, torch.Tensor] = {}
        for name, (own, whole) in self.texts.items():
            parameter = self.module._parameters[name]
            if parameter is not None and parameter.device.type == "jax":
                # first where it is: in a loop, so the gradient of each layer is partitioned before the next one's
                gathered[name] = constrained_by(constrained_by(parameter, own), whole)
        return gathered


def _largest_dim(parameter: torch.Tensor, mesh: AnyMesh, axis: str) -> int | None:
    """The dimension to partition over an axis: the largest of those that it divides, besides other axes."""
    size = mesh.shape[axis]
    entries = _axes_now(parameter, mesh)
    if parameter.numel() < _LEAST * size or any(axis in axes for axes in entries):
        return None
    left = [n // math.prod(mesh.shape[a] for a in axes) for n, axes in zip(parameter.shape, entries, strict=True)]
    dividing = [dim for dim, n in enumerate(left) if n % size == 0]
    return max(dividing, key=lambda dim: left[dim], default=None)


def _axes_now(tensor: torch.Tensor, mesh: AnyMesh) -> list[tuple[str, ...]]:
    """For each dimension of a tensor the axes of the mesh by which it is partitioned."""
    none: list[tuple[str, ...]] = [()] * tensor.dim()
    if not isinstance(tensor, Tensor):
        return none
    sharding = tensor.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
        return none
    return [mesh_axes_of(entry) for entry in (*sharding.spec, *none)[: tensor.dim()]]


def _place(module: torch.nn.Module, mesh: AnyMesh, layouts: Mapping[str, Layout]) -> None:
    """Moves parameters and buffers to a mesh; those without a layout stay partitioned as they are."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    layouts = _by_first_names(module, layouts)
    for name, layout in layouts.items():  # all are checked before the first one moves
        layout.sharding(shapes[name], name)
    whole = Layout(mesh, ())
    unmade = [m for m in module.modules() if any(p.is_meta for p in m.parameters(recurse=False))]
    for name, parameter in module.named_parameters():
        layout = _together(parameter, layouts.get(name, whole))
        new = from_array(distributed_array(parameter, layout, name))
        _replace(parameter, torch.nn.Parameter(new, parameter.requires_grad))
        if parameter.is_floating_point() or parameter.is_complex():
            place_gradient(parameter, layout.text())
    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = _buffer(buffer, whole)
    if not isinstance(mesh, AbstractMesh):
        _initialize(module, unmade)


def _by_first_names(module: torch.nn.Module, layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """The layouts of parameters by the first of their names: tied ones have several. One that partitions prevails."""
    first: dict[int, str] = {}
    names = {n: first.setdefault(id(p), n) for n, p in module.named_parameters(remove_duplicate=False)}
    found: dict[str, Layout] = {}
    for name, layout in layouts.items():
        if layout.dims or names[name] not in found:
            found[names[name]] = layout
    return found


def _initialize(module: torch.nn.Module, unmade: Iterable[torch.nn.Module]) -> None:
    """Gives values to the parameters of parts made on "meta", by what the parts or the model have for that."""
    of_model = getattr(module, "_init_weights", None)  # as Hugging Face's models have it, for each of their parts
    without = []
    with torch.no_grad():
        for part in unmade:
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if of_model is not None:
                of_model(part)
            elif reset is not None:
                reset()
            else:
                without.append(type(part).__name__)
    if without:
        _log.warning(
            "the parameters of %s, made on meta, are zeros: there is no reset_parameters() to give them values."
            " Fix: load_state_dict(...)",
            ", ".join(dict.fromkeys(without)),
        )


def _replace(parameter: torch.Tensor, new: torch.nn.Parameter) -> None:
    """Gives a parameter, which stays the same object for optimizers and other modules, the values of another."""
    gradient = parameter.grad
    if isinstance(parameter, Tensor):
        parameter.data = new.data
    else:
        parameter.grad = None
        torch.utils.swap_tensors(parameter, new)
    if gradient is not None:
        parameter.grad = from_array(distributed_array(gradient, Layout(new.sharding.mesh, ()), "a gradient"))  # type: ignore[attr-defined]  # on the device


def _buffer(buffer: torch.Tensor, whole: Layout) -> torch.Tensor:
    if isinstance(buffer, Tensor):
        if not partitioned.is_partitioned(array_of(buffer)):
            buffer.data = from_array(distributed_array(buffer, whole, "a buffer"))
        return buffer
    return from_array(distributed_array(buffer, whole, "a buffer"))


def _together(parameter: torch.Tensor, layout: Layout) -> Layout:
    """A layout with the axes by which a parameter is partitioned already, if they are others."""
    named = {axis for _, axes in layout.dims for axis in axes or ()}
    had = [(d, axes) for d, axes in enumerate(_axes_now(parameter, layout.mesh)) if axes and not named & {*axes}]
    return Layout(layout.mesh, (*had, *layout.dims))


class _ValuePlacer:
    """A hook of a module, which places what it takes or what it gives."""

    def __init__(self, style: Style, mesh: AnyMesh, axis: str) -> None:
        self.inputs = [_texts(places, mesh, axis) for places in style.inputs]
        self.keywords = {name: _texts(places, mesh, axis) for name, places in style.keywords.items()}
        self.outputs = [_texts(places, mesh, axis) for places in style.outputs]

    def before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        args = _placed(args, self.inputs)
        return args, {name: _one(value, self.keywords.get(name, [])) for name, value in kwargs.items()}

    def after(self, module: torch.nn.Module, args: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            return _placed(result, self.outputs)
        return _one(result, self.outputs[0])


def _texts(places: ValuePlaces, mesh: AnyMesh, axis: str) -> list[str]:
    dims = [(place.dim, ()) if isinstance(place, WholeDim) else (place, (axis,)) for place in places]
    return [Layout(mesh, (dim,), is_open=True).text() for dim in dims]


def _placed(values: tuple[Any, ...], texts: list[list[str]]) -> tuple[Any, ...]:
    return tuple([_one(value, texts[i] if i < len(texts) else []) for i, value in enumerate(values)])


def _one(value: Any, texts: list[str]) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type != "jax":
        return value
    return functools.reduce(constrained_by, texts, value)


def _hook(module: torch.nn.Module, style: Style, mesh: AnyMesh, axis: str) -> None:
    placer = _ValuePlacer(style, mesh, axis)
    if any(placer.inputs) or any(placer.keywords.values()):
        module.register_forward_pre_hook(placer.before, with_kwargs=True)
    if any(placer.outputs):
        module.register_forward_hook(placer.after)
