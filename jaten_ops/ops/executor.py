"""From a kernel to a function that runs: order of arguments, `jax.jit`, checks of shapes and of values."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.export import is_symbolic_dim

from ..arrays import bridge
from ..arrays.abstract_arrays import AbstractArray
from ..errors import MissingValuesError
from ..interpreter import FirstCalls, Padding
from ..kernel_base import checks, prng, promotion
from ..meta.refusals import refuse, reword
from ..registry import Entry, parameters
from ..schema import OpSpec
from ..tracing import out_of_capture
from ..xla import (
    jitted,
    kernel_cache,  # noqa: F401  # it recognizes the names that are given here
    matmul_precision,
    x64,
)
from ..xla.x64 import Enabled
from . import changing_numbers, dynamic_slices, result_checks, value_sizes
from .default_dtypes import as_outside
from .traced_fakes import TracedFake

_log = logging.getLogger(__name__)

# Values of these types may differ from call to call without compiling anew; all others are static.
_TRACED_TYPES = frozenset({"Scalar", "Scalar?", "Scalar[]", "Scalar[]?", "float", "float?"})
_RUNS = dynamic_slices.RUNS | changing_numbers.RUNS | value_sizes.RUNS
_SIZES = frozenset({"input_sizes", "size", "sizes"})  # arguments that are the sizes of results
_BY_DTYPE, _BY_DTYPE_AND_WIDTH = "_default_dtype()", "(_default_dtype(), _wide)"
_DEFAULT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Signature:
    """Conversions between a schema's arguments as a flat list of values, and the arguments of kernels and ops.

    Attributes:
        arguments: all arguments, in schema order.
        index: the position of each argument, by name.
        kernel_positions: those that a kernel gets: all but those about where a result is stored.
    """

    def __init__(self, spec: OpSpec) -> None:
        self.arguments = spec.arguments
        self.index = {a.name: i for i, a in enumerate(self.arguments)}
        self._defaults = [a.default for a in self.arguments]
        self.kernel_positions = [i for i, a in enumerate(self.arguments) if not a.is_of_storage]
        self.positional = sum(not a.kwarg_only for a in self.arguments)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The values of a call in schema order, defaults filled in."""
        values = [*args, *self._defaults[len(args) :]]
        for name, value in kwargs.items():
            values[self.index[name]] = value
        return values

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Values in schema order as the positional and keyword arguments of a call."""
        names = (a.name for a in self.arguments[self.positional :])
        return values[: self.positional], dict(zip(names, values[self.positional :], strict=True))


class KernelCall:
    """Calls a kernel with the values of `Signature.kernel_positions`, as the kernel's own parameters."""

    def __init__(self, spec: OpSpec, fn: Callable[..., Any]) -> None:
        arguments = parameters.arguments_of_kernel(spec)
        self._fn = fn if spec.namespace == "jaten" else as_outside(fn)
        self._keywords = list(parameters.keywords_of(spec, fn).values())
        self.positional_names = [a.name for a in arguments if not a.kwarg_only]
        self.keyword_names = [a.name for a in arguments if a.kwarg_only]

    def __call__(self, values: Sequence[Any], key: jax.Array | None = None) -> Any:
        cut = len(self.positional_names)
        keywords = dict(zip(self._keywords, values[cut:], strict=True))
        if key is not None:
            keywords["key"] = key
        return self._fn(*values[:cut], **keywords)


def freeze(value: Any) -> Any:
    """An argument without tensors in the form for kernels: lists become tuples, torch's dtypes numpy's."""
    if isinstance(value, list | tuple):
        return tuple(freeze(v) for v in value)
    return bridge.to_numpy_dtype(value) if isinstance(value, torch.dtype) else value


@jax.tree_util.register_pytree_node_class
class Checked:
    """Results together with the conditions under which they hold, as one output of a jitted function."""

    def __init__(self, results: Any, holds: Any, errors: tuple[Exception, ...]) -> None:
        self.results, self.holds, self.errors = results, holds, errors

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Exception, ...]]:
        return (self.results, self.holds), self.errors

    @classmethod
    def tree_unflatten(cls, errors: tuple[Exception, ...], children: tuple[Any, Any]) -> Checked:
        return cls(*children, errors)


def raise_first_broken(holds: jax.Array, errors: Sequence[Exception]) -> None:
    """Raises the error of the first condition that does not hold; waits for the computation."""
    try:
        # waits like NumPy's array, at half the cost
        values: Any = memoryview(holds)  # type: ignore[arg-type]  # JAX's stubs do not tell of its buffer protocol
    except (BufferError, TypeError):  # the array is not in host memory
        values = np.asarray(holds)
    if 0 in values:
        error = errors[list(values).index(0)]
        kind = torch.linalg.LinAlgError if isinstance(error, np.linalg.LinAlgError) else type(error)
        raise kind(*error.args)


_unchecked: contextvars.ContextVar[list[Checked] | None] = contextvars.ContextVar("unchecked", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[list[Checked]]:
    """Collects the conditions that are left unchecked because an outer trace has no values for them."""
    found: list[Checked] = []
    token = _unchecked.set(found)
    try:
        yield found
    finally:
        _unchecked.reset(token)


def _to_meta(value: Any, type_name: str) -> Any:
    """A kernel's argument in the form for its fake: arrays become meta tensors, traced numbers the number 1."""
    if isinstance(value, tuple):
        return [_to_meta(v, type_name) for v in value]
    if isinstance(value, AbstractArray):  # of a kernel that is not jitted
        raise MissingValuesError
    if isinstance(value, np.dtype):
        return bridge.TORCH_DTYPES[value]
    if isinstance(value, jax.Array | np.ndarray):
        if promotion.is_scalar(value) or not type_name.startswith("Tensor"):
            return np.ones((), value.dtype).item()
        return torch.empty(value.shape, dtype=bridge.TORCH_DTYPES[np.dtype(value.dtype)], device="meta")
    return value


def as_meta(signature: Signature, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """A kernel's arguments in the form for its fake, on the device `meta`."""
    full: list[Any] = [torch.device("meta") if a.type.startswith("Device") else None for a in signature.arguments]
    for i, value in zip(signature.kernel_positions, values, strict=True):
        full[i] = _to_meta(value, signature.arguments[i].type)
    return signature.split(full)


def _has_open_size(values: Sequence[Any]) -> bool:
    leaves = jax.tree.leaves(list(values))
    sizes = [size for value in leaves for size in getattr(value, "shape", ())]
    return any(map(is_symbolic_dim, [*leaves, *sizes]))


class Unsuitable(Exception):
    """A kernel cannot overwrite its first argument: its results do not fit, or must be checked first."""


def _always(*_args: Any, **_kwargs: Any) -> bool:
    return True


class _Padding(Padding):
    """ATen's errors for calls of an op for which a program for larger arrays runs."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def validate(self, values: Any, avals: list[Any], form: Any) -> None:
        spec = self._executor.spec
        expected = self._executor.validate(values[:-1] if spec.random else values)  # the last one is the seed
        if expected is not None:
            results = jax.tree.unflatten(form, avals)
            got = results.results if type(results) is Checked else results
            result_checks.hold_against(spec, got, expected)

    def is_refused(self, results: Any) -> bool:
        return type(results) is Checked and not np.asarray(results.holds).all()


class Executor:
    """One op's kernel under `jax.jit`, called with arrays.

    Args:
        spec: the op.
        entry: its kernel.
        fake: the op's fake. It is run on meta tensors when a new combination of shapes, dtypes and static values is
            traced: it raises ATen's error for bad ones, and gives the shapes and dtypes that the kernel must return.

    Attributes:
        spec: the op.
        preparation: Python source to be run before `expression`, while 64-bit types are still as the program has them.
    """

    def __init__(self, spec: OpSpec, entry: Entry, fake: Callable[..., Any] | None) -> None:
        self.spec = spec
        self._signature = Signature(spec)
        self._call = KernelCall(spec, entry.fn)
        self._fake = fake
        self._may_be_eager = bool(entry.eager)
        self._is_eager = KernelCall(spec, entry.eager if callable(entry.eager) else _always)
        taken = [spec.arguments[i] for i in self._signature.kernel_positions]
        static_positions = [
            i
            for i, a in enumerate(taken)
            if not a.is_tensor and (a.type not in _TRACED_TYPES or a.name in entry.static)
        ]
        self._static_positions = static_positions
        self._sizes = [i for i, a in enumerate(taken) if a.type == "int[]" and a.name in _SIZES]
        # the key of a trace besides the arguments: users' kernels also depend on the program's 64-bit setting
        is_own = spec.namespace == "jaten"
        self._selected = _BY_DTYPE if is_own else _BY_DTYPE_AND_WIDTH
        self.preparation = "pass" if is_own else "_wide = _outside()"
        self._run = (
            {dtype: self._make_traced(bridge.DTYPES[dtype], None) for dtype in _DEFAULT_DTYPES}
            if is_own
            else {(d, w): self._make_traced(bridge.DTYPES[d], w) for d in _DEFAULT_DTYPES for w in (False, True)}
        )
        self._padding = _Padding(self) if is_own else None
        self._ended: set[FirstCalls] = set()
        self._jit = {key: jitted.jitted(run, static_argnums=static_positions) for key, run in self._run.items()}
        # Passing a number costs a microsecond. Numbers that equal their default, as most do, are static.
        self._defaults = [
            (i, a.default)
            for i, a in enumerate(taken)
            if a.has_default and a.type in _TRACED_TYPES and i not in static_positions and a.default is not None
        ]
        static_too = [*static_positions, *(i for i, _ in self._defaults)]
        self._jit_of_defaults = {
            key: jitted.jitted(run, static_argnums=static_too) if self._defaults else self._jit[key]
            for key, run in self._run.items()
        }

    def _jit_in_place(self, written: int) -> dict[Any, Callable[..., Any]]:
        """The kernel jitted with its first arguments, tensors or lists, donated, so that XLA may overwrite them.

        It raises Unsuitable, before anything is computed, if the results do not fit into them.
        """

        def over(run: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(run)
            def traced(*values: Any) -> Any:
                results = run(*values)
                kinds = [[(a.shape, a.dtype) for a in jax.tree.leaves(x)] for x in (values[:written], results)]
                if isinstance(results, Checked) or kinds[0] != kinds[1]:
                    raise Unsuitable
                return results

            return traced

        return {
            key: jitted.jitted(over(run), static_argnums=self._static_positions, donate_argnums=range(written))
            for key, run in self._run.items()
        }

    def _make_traced(self, default_dtype: np.dtype, wide: bool | None) -> Callable[..., Any]:
        def traced(*values: Any) -> Any:
            for first in list(self._ended):  # this may be a new kind of operands
                first.resume()
            conditions = checks.Conditions()
            key = None
            if self.spec.random:
                values, key = values[:-1], jax.random.key(values[-1], impl=prng.IMPL)
            with (
                promotion.default_float(default_dtype),
                checks.collect(conditions),
                matmul_precision.as_in_torch(),
                jax.numpy_dtype_promotion("standard"),
                jax.numpy_rank_promotion("allow"),
                contextlib.nullcontext() if wide is None else x64.told(wide),
            ):
                expected = self.validate(values)
                got = result_checks.settled(self.spec, self._call(values, key))
            if expected is not None:
                result_checks.hold_against(self.spec, got, expected)
            if conditions.values:
                return Checked(got, conditions.stacked(), tuple(conditions.errors))
            return got

        traced.__name__ = f"jaten_{self.spec.overload.replace('.', '_')}"
        return traced

    def validate(self, values: Sequence[Any]) -> Any:
        """The results as meta tensors, if torch has a function for them.

        Raises:
            RuntimeError, ValueError, IndexError, TypeError: ATen's error for such arguments.
        """
        # a program for open sizes was traced for the call's first, and is held against these results
        if self._fake is None or _has_open_size(values):
            return None
        args, kwargs = as_meta(self._signature, values)
        try:
            expected = self._fake(*args, **kwargs)
        except NotImplementedError:  # ATen has no meta function for it
            expected = None
        except Exception as error:
            reword(self.spec, args, kwargs)  # first, since its error names the sizes of the call
            refuse(self.spec, args, kwargs)
            if isinstance(error, AssertionError | KeyError):  # a meta function of ATen's in Python
                raise RuntimeError(*error.args) from error
            raise
        refuse(self.spec, args, kwargs)
        for t in jax.tree.leaves(expected):
            if isinstance(t, torch.Tensor):
                bridge.to_numpy_dtype(t.dtype)  # raises for a dtype that JAX does not have
        return expected

    def expression(
        self, names: Sequence[str], values: Sequence[str], *, in_place: int = 0
    ) -> tuple[str, dict[str, Any]]:
        """Python source of an expression that runs the kernel with 64-bit types on, and the values of the names in it.

        Args:
            names: variables with the caller's arguments.
            values: the kernel's arguments: source that makes arrays and frozen values of them.
            in_place: how many of the first arguments' arrays are donated.
        """
        scope: dict[str, Any] = {"_x64": x64, "_Checked": Checked, "_check": self._checked}
        scope |= {"_default_dtype": torch.get_default_dtype, "_outside": x64.outside}
        if in_place:
            scope["_in_place"] = self._jit_in_place(in_place)
            return f"_in_place[{self._selected}]({', '.join(values)})", scope
        if self.spec.namespace == "jaten" and self.spec.overload in _RUNS:
            return f"_execute([{', '.join(values)}], {self._selected})", scope | {"_execute": self._execute_anywhere}
        if self._may_be_eager:
            return f"_execute([{', '.join(values)}], {self._selected})", scope | {"_execute": self._execute}
        scope |= {"_traced": self._jit_at_first, "_static": self._at_first(self._jit_of_defaults)}
        positions = [self._signature.kernel_positions[i] for i, _ in self._defaults]
        same = " and ".join(f"{names[i]} is _default_{i}" for i in positions)
        jit = f"(_static if {same} else _traced)" if same else "_traced"
        return f"{jit}[{self._selected}]({', '.join(values)})", scope

    @functools.cached_property
    def _jit_at_first(self) -> dict[Any, Callable[..., Any]]:
        return self._at_first(self._jit)

    def _at_first(self, compiled: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
        """Jitted functions whose first calls are interpreted; then they stand in the table themselves."""
        table: dict[Any, Callable[..., Any]] = {}
        static = self._static_positions
        if compiled is self._jit_of_defaults:
            static = [*static, *(i for i, _ in self._defaults)]
        for key, made in compiled.items():
            table[key] = FirstCalls(
                made, static, functools.partial(self._place, table, key), self._padding, self._sizes
            )
        return table

    def _place(self, table: dict[Any, Callable[..., Any]], key: Any, first: FirstCalls, is_ended: bool) -> None:
        table[key] = first.compiled if is_ended else first
        (self._ended.add if is_ended else self._ended.discard)(first)

    def _execute(self, values: Sequence[Any], key: Any) -> Any:
        run = self._run if self._may_be_eager and self._is_eager(values) else self._jit_at_first
        return run[key](*values)

    def _execute_anywhere(self, values: Sequence[Any], key: Any) -> Any:
        found = _RUNS[self.spec.overload](*values)
        return self._execute(values, key) if found is None else found

    def _checked(self, results: Checked) -> Any:
        if not isinstance(results.holds, jax.core.Tracer):
            raise_first_broken(results.holds, results.errors)
        elif (found := _unchecked.get()) is not None:  # in a caller's `jax.jit` there are no values
            found.append(results)
        return results.results

    def fake(self, /, *args: Any, **kwargs: Any) -> Any:
        """The results as meta tensors, from the kernel traced on the shapes and dtypes of tensors.

        Symbolic sizes stay symbolic, unless what the kernel does depends on them.
        """
        return self._traced_fake.of(self._signature.bind(args, kwargs))

    @functools.cached_property
    def _traced_fake(self) -> TracedFake:
        return TracedFake(self.spec, self._signature.kernel_positions, freeze, self._results_of_shapes)

    def _results_of_shapes(self, taken: Sequence[Any]) -> Any:
        key = (torch.get_default_dtype(), x64.outside())
        with Enabled(), out_of_capture():
            got = self._jit[key].eval_shape(*taken)
        return got.results if type(got) is Checked else got
