"""An op's kernel as a function of tensors: to arrays, through the executable, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import meta, registry
from .errors import MissingKernelError
from .execute import Executor, Signature, freeze
from .random import draw_seed
from .schema import OpSpec
from .tracing import opaque

_EXECUTORS: dict[str, Executor] = {}


def key_of(spec: OpSpec) -> str:
    """What an op is called in the registry's tables."""
    return spec.overload if spec.namespace == "jaten" else spec.name


def _converters(spec: OpSpec, positions: Sequence[int], unwrap: Callable[[Any], Any]) -> list[tuple[int, Callable]]:
    """For each argument that is not handed on as it is: where it stands among the kernel's, and what to do with it."""

    def optional(value: Any) -> Any:
        return None if value is None else unwrap(value)

    def many(value: Any) -> Any:
        return tuple([None if v is None else unwrap(v) for v in value])

    table = []
    for at, position in enumerate(positions):
        kind = spec.arguments[position].type
        if kind == "Tensor":
            table.append((at, unwrap))
        elif kind == "Tensor?":
            table.append((at, optional))
        elif kind.startswith("Tensor"):
            table.append((at, many))
        elif "[]" in kind or kind.startswith("ScalarType"):
            table.append((at, freeze))
    return table


class OpKernel:
    """An op's implementation for one device: tensors to arrays, the executable, arrays to tensors.

    Args:
        spec: the op.
        unwrap: a tensor of the device to its array.
        wrap: an array to a new tensor of the device.
    """

    def __init__(self, spec: OpSpec, unwrap: Callable[[Any], Any], wrap: Callable[[Any], Any]) -> None:
        self._spec, self._unwrap, self._wrap = spec, unwrap, wrap
        self._run: Callable[[Sequence[Any], dict[str, Any]], Any] | None = None

    def prepared(self) -> Callable[[Sequence[Any], dict[str, Any]], Any]:
        """The implementation, of positional and keyword arguments. What a call needs is looked up once, here."""
        spec = self._spec
        entry = registry.KERNELS.get(key_of(spec))
        if entry is None:
            raise MissingKernelError(spec.name)
        # one for all devices: what it has traced and compiled serves tensors of each
        executor = _EXECUTORS.get(key_of(spec)) or Executor(spec, entry, meta.fake_of(spec))
        _EXECUTORS[key_of(spec)] = executor
        signature = Signature(spec)
        bind, positions = signature.bind, signature.kernel_positions
        converters = _converters(spec, positions, self._unwrap)
        names = [a.name for a in spec.arguments]
        generator = names.index("generator") if "generator" in names else None
        takes_some, is_random = positions != list(range(len(names))), spec.random
        wrap = self._wrap if spec.returns == ("Tensor",) else self._wrap_all

        def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            taken = values = bind(args, kwargs)
            if takes_some or is_random:
                taken = [values[i] for i in positions]
            for at, convert in converters:
                taken[at] = convert(taken[at])
            if is_random:
                taken.append(draw_seed(None if generator is None else values[generator]))
            return wrap(executor(taken))

        self._run = run
        return run

    def of_arrays(self) -> tuple[int, Callable[..., Any] | None]:
        """How many tensors come first, and the kernel as a function of their arrays where it has no other form."""
        kinds = [a.type for a in self._spec.arguments]
        count = next((i for i, kind in enumerate(kinds) if kind != "Tensor"), len(kinds))
        self.prepared()
        plain = self._spec.returns == ("Tensor",) and not any("Tensor" in kind for kind in kinds[count:])
        return count, _EXECUTORS[key_of(self._spec)].of_arrays(count) if plain else None

    @opaque
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._run or self.prepared())(args, kwargs)

    def _wrap_all(self, results: Any) -> Any:
        returns = self._spec.returns
        if not returns:  # the dispatcher wants None of an op without results
            return None
        if not isinstance(results, tuple | list):
            results = (results,)
        if returns == ("Tensor[]",):
            return [self._wrap(r) for r in results]
        wrapped = tuple(self._wrap_as(kind, r) for r, kind in zip(results, returns, strict=True))
        return wrapped if len(wrapped) != 1 else wrapped[0]

    def _wrap_as(self, kind: str, result: Any) -> Any:
        if result is None:  # not in the output mask
            return None
        if kind == "Tensor[]":
            return [self._wrap(r) for r in result]
        return self._wrap(result) if kind == "Tensor" else result.item()
