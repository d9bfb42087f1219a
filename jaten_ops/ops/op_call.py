"""An op's kernel as a function of tensors: to arrays, through the executable, and back."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Any

from .. import meta, registry
from ..arrays.observers import read_number
from ..arrays.seeds import draw_seed
from ..kernel_base.checks import READS_OF_TRACERS, note_operator
from ..program_lines import place_of_call
from ..schema import OpSpec
from ..tracing import opaque
from ..xla import malloc
from .constant_operands import computed_now, with_values
from .executor import Executor, Signature, freeze

_EXECUTORS: dict[str, Executor] = {}

DIRECT: dict[str, tuple[OpKernel, ...]] = {}
"""The implementations of jaten's own ops for plain tensors and for carriers, by overload."""


def registry_key(spec: OpSpec) -> str:
    """The key of an op in the registry's tables."""
    return spec.overload if spec.namespace == "jaten" else spec.name


def _tuple(value: Any) -> Any:
    return tuple(value) if type(value) is list else freeze(value)


class _Frozen(dict[Any, Any]):
    """A table of frozen values, filled by `freeze` on first use."""

    def __missing__(self, value: Any) -> Any:
        return self.setdefault(value, freeze(value))


_DTYPES_OF_KERNELS = _Frozen()


def _takers(spec: OpSpec, unwrap: Callable[[Any], Any]) -> list[Callable[[Any], Any] | None]:
    """For each argument, the conversion from the caller's value to the kernel's; None if they are equal."""

    def optional(value: Any) -> Any:
        return None if value is None else unwrap(value)

    def many(value: Any) -> Any:
        return tuple([None if v is None else unwrap(v) for v in value])

    def taker(kind: str) -> Callable[[Any], Any] | None:
        if kind.startswith("Tensor"):
            return {"Tensor": unwrap, "Tensor?": optional}.get(kind, many)
        return _tuple if "[]" in kind else _DTYPES_OF_KERNELS.__getitem__ if kind.startswith("ScalarType") else None

    return [taker(a.type) for a in spec.arguments]


Rescue = Callable[[Exception, tuple[Any, ...], dict[str, Any]], Any]
"""A fallback for a call that has raised: it gets the exception and the call's arguments."""

_CALL = """\
def _call({parameters}):
    {preparation}
    try:
        _before = _x64.enter()
        try:
            _results = {execute}
        finally:
            _x64.leave(_before)
        if _type(_results) is _Checked:
            _results = _check(_results)
    except _rescued as _error:
        return _rescue(_error, ({positional}), {{{keywords}}})
    return _wrap(_results)
"""


def _names(spec: OpSpec) -> list[str]:
    """Names of the arguments in the generated source: numbered, but for keyword-only ones, which keep their names.

    All other names in it begin with an underscore.
    """
    return [
        a.name if a.kwarg_only and not a.name.startswith("_") and not keyword.iskeyword(a.name) else f"_{i}"
        for i, a in enumerate(spec.arguments)
    ]


def _source(spec: OpSpec, names: Sequence[str], preparation: str, execute: str) -> str:
    cut = sum(not a.kwarg_only for a in spec.arguments)
    parameters = [f"{n}=_default_{i}" if spec.arguments[i].has_default else n for i, n in enumerate(names)]
    return _CALL.format(
        parameters=", ".join([*parameters[:cut], *["/"][:cut], *["*"][: len(names) - cut], *parameters[cut:]]),
        preparation=preparation,
        execute=execute,
        positional="".join(f"{n}, " for n in names[:cut]),
        keywords=", ".join(f"{a.name!r}: {n}" for a, n in zip(spec.arguments[cut:], names[cut:], strict=True)),
    )


def _renamed(call: Callable[..., Any], spec: OpSpec, names: Sequence[str]) -> Callable[..., Any]:
    """The generated function with the schema's keyword names, if one of them is a Python keyword, such as "lambda"."""
    other = {a.name: n for a, n in zip(spec.arguments, names, strict=True) if a.kwarg_only and a.name != n}

    def renamed(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{other.get(name, name): value for name, value in kwargs.items()})

    return renamed if other else call


_OF_ABSENT = (AttributeError, TypeError, RuntimeError)
_ALWAYS_RESCUED = (*_OF_ABSENT, *READS_OF_TRACERS, FloatingPointError)


def _refuse_absent(spec: OpSpec, *args: Any, **kwargs: Any) -> None:
    """Raises ATen's error for None in place of a tensor."""
    for i, argument in enumerate(spec.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default)
        if argument.type == "Tensor" and value is None:
            raise RuntimeError(
                f"{spec.name}: Expected a proper Tensor but got None (or an undefined Tensor in C++)"
                f" for argument #{i} '{argument.name}'"
            )


def make_call(
    spec: OpSpec,
    executor: Executor,
    unwrap: Callable[[Any], Any],
    wrap: Callable[[Any], Any],
    rescued: tuple[type[Exception], ...] = (),
    rescue: Rescue | None = None,
    in_place: int = 0,
) -> Callable[..., Any]:
    """A generated function with the schema's parameters that runs an op's kernel.

    It is compiled from source, with everything that a call needs already looked up. Otherwise calls between functions
    would be half of the cost of an operator on small tensors beyond torch's dispatcher and JAX.

    Args:
        spec: the op.
        executor: its kernel.
        unwrap: a tensor of a device to its array.
        wrap: the kernel's results to the op's.
        rescued: the exceptions that `rescue` handles.
        in_place: how many of the first arguments' arrays are donated.
    """
    scope: dict[str, Any] = {"_wrap": wrap, "_draw_seed": draw_seed, "_type": type}
    scope |= {"_rescued": rescued, "_rescue": rescue}
    scope |= {f"_take_{i}": take for i, take in enumerate(_takers(spec, unwrap))}
    names = _names(spec)
    values = [f"_take_{i}({n})" if scope[f"_take_{i}"] else n for i, n in enumerate(names)]
    taken = [values[i] for i in Signature(spec).kernel_positions]
    if spec.random:
        generators = [n for a, n in zip(spec.arguments, names, strict=True) if a.type.startswith("Generator")]
        seed = f"_draw_seed({', '.join(generators[:1])})"
        scope |= {f"_draws_{i}": does for i, does in spec.draws_by.items()}
        does = " and ".join(f"_draws_{i}({names[i]})" for i in spec.draws_by)
        taken.append(f"({seed} if {does} else 0)" if does else seed)
    execute, needed = executor.expression(names, taken, in_place=in_place)
    scope |= needed | {f"_default_{i}": a.default for i, a in enumerate(spec.arguments)}
    source = _source(spec, names, executor.preparation, execute)
    exec(compile(source, f"<{spec.name}>", "exec"), scope)  # our own text
    return _renamed(scope["_call"], spec, names)


class OpKernel:
    """An op's implementation for one device: tensors to arrays, the executable, arrays to tensors.

    Args:
        spec: the op.
        unwrap: a tensor of the device to its array.
        wrap: an array to a new tensor of the device.
        rescued: the exceptions that `rescue` handles.
        rescue: for calls that have raised one of these.
    """

    def __init__(
        self,
        spec: OpSpec,
        unwrap: Callable[[Any], Any],
        wrap: Callable[[Any], Any],
        rescued: tuple[type[Exception], ...] = (),
        rescue: Rescue | None = None,
    ) -> None:
        self._spec, self._unwrap, self._wrap = spec, unwrap, wrap
        self._rescued, self._rescue = rescued, rescue
        self._run: Callable[..., Any] | None = None
        self._undiverted: Callable[..., Any] | None = None

    def prepared(self, *, in_place: int = 0) -> Callable[..., Any]:
        """The implementation, as `make_call` makes it."""
        spec = self._spec
        entry = registry.KERNELS.get(registry_key(spec))
        if entry is None:
            raise registry.missing(spec.name)
        registry.USED.add(registry_key(spec))
        malloc.retain()
        # one executor for all devices, so that they share its traces and executables
        # the fake of a user's eager kernel makes sizes that only torch's tracing has
        fake = None if entry.eager and spec.namespace != "jaten" else meta.fake_of(spec)
        executor = _EXECUTORS.get(registry_key(spec)) or Executor(spec, entry, fake)
        _EXECUTORS[registry_key(spec)] = executor
        wrap = self._wrap if spec.returns == ("Tensor",) else self._wrap_all
        rescued = (*self._rescued, *_ALWAYS_RESCUED)
        self._run = run = make_call(spec, executor, self._unwrap, wrap, rescued, self._answer, in_place)
        return run

    def _answer(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call that has raised, or its error."""
        if isinstance(error, FloatingPointError):  # of `jax_debug_nans`
            raise FloatingPointError(f"{self._spec.name}{place_of_call()}: {error}") from error
        if isinstance(error, _OF_ABSENT):
            _refuse_absent(self._spec, *args, **kwargs)
        if isinstance(error, READS_OF_TRACERS):
            known = with_values(args, kwargs, self._unwrap, self._wrap)
            if known is not None:
                return computed_now(self._undiverted or self._run, known)  # type: ignore[arg-type]  # one has raised
            note_operator(error, self._spec.overload, place_of_call)
        if self._rescue is None or not isinstance(error, self._rescued):
            raise error
        return self._rescue(error, args, kwargs)

    def forget(self) -> None:
        """Drops what was made for a kernel that another has replaced."""
        _EXECUTORS.pop(registry_key(self._spec), None)
        self._run = None

    @opaque
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return (self._run or self.prepared())(*args, **kwargs)

    def divert(self, through: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Has later calls go through a function that is made of the one which they would run."""
        self._undiverted = self._run or self.prepared()
        self._run = through(self._undiverted)

    def restore(self) -> None:
        """Ends that."""
        self._run = self._undiverted

    def _wrap_all(self, results: Any) -> Any:
        returns = self._spec.returns
        if not returns:  # the dispatcher expects None from an op without results
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
        return self._wrap(result) if kind.startswith("Tensor") else read_number(result)
