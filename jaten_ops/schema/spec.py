"""`OpSpec`: the schema and properties of one operator overload, one line of generated data.

This module imports nothing of jaten, so that the code generator can load it when the package itself does not import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch

_Kind = Literal["functional", "view", "composite", "inplace", "out"]

# Arguments about where and how to store a result, with their types: a JAX kernel does not get them.
STORAGE_ARGUMENTS = {
    "layout": "Layout", "device": "Device", "pin_memory": "bool", "memory_format": "MemoryFormat",
    "non_blocking": "bool", "generator": "Generator",
}  # fmt: skip

# Arguments of a factory that its out= overload lacks, because the tensor determines them.
TOLD_BY_OUT = frozenset(STORAGE_ARGUMENTS) - {"generator"} | {"dtype"}

# Operators that read memory beyond their operand's own elements, which it may share with other tensors.
READS_MEMORY = frozenset({"as_strided", "as_strided_copy"})

# Operators that keep the order of their operand's elements in memory, and give them a new layout.
KEEPS_MEMORY_ORDER = frozenset({"resize", "resize_as"})

_SEPARATOR = "\t"


@dataclass(frozen=True)
class Argument:
    """One parameter of a schema, with the type spelled as in the schema ("Tensor?", "int[]", "Scalar")."""

    name: str
    type: str
    default: Any
    has_default: bool
    kwarg_only: bool

    @property
    def is_tensor(self) -> bool:
        """True for Tensor, Tensor?, Tensor[] and Tensor?[]."""
        return self.type.startswith("Tensor")

    @property
    def is_of_storage(self) -> bool:
        """True for an argument about where a result is stored; a user's operator may use its name for a value."""
        return STORAGE_ARGUMENTS.get(self.name) == self.type.removesuffix("?")


_ALIASES = re.compile(r"\([^()]*\)(?=\[|\?| )")
"""The alias annotation of an argument, as in "Tensor(a!) x" and "Tensor(a!)[] xs"."""

_TYPE_NAMES = {"number": "Scalar", "Device": "Device", "ScalarType": "ScalarType"}


def _type_name(jit_type: Any) -> str:
    """Spells a TorchScript type as a schema does: Optional[List[int]] is `int[]?`."""
    text = str(jit_type)
    if text.startswith("Optional[") and text.endswith("]"):
        return _type_name(text[len("Optional[") : -1]) + "?"
    if text.startswith("List[") and text.endswith("]"):
        return _type_name(text[len("List[") : -1]) + "[]"
    return _TYPE_NAMES.get(text, text)


_DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64,
    5: torch.float16, 6: torch.float32, 7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128,
    11: torch.bool, 15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn,
    27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}  # fmt: skip
"""Dtypes by their numbers in c10, as the parser gives a default of type ScalarType."""


def _default_of(argument: Any) -> Any:
    value = argument.default_value
    return _DTYPES.get(value, value) if _type_name(argument.real_type).startswith("ScalarType") else value


DRAWS: dict[str, Callable[[Any], bool]] = {
    "dropout": lambda p: p != 0,
    "dropout_p": lambda p: p != 0,
    "train": lambda train: train is None or bool(train),
    "training": bool,
}
"""For arguments that can turn off a random operator's draws: True for values with which it draws."""


@dataclass(frozen=True)
class OpSpec:
    """One overload: its schema without alias annotations, and the properties that the generator has read.

    Attributes:
        schema: the schema text, as in `add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.
        kind: functional and view overloads have kernels; a view's jaten op copies. composite overloads have an ATen
            composite body. inplace and out overloads are derived from `base`.
        tags: the names of the overload's `torch.Tag`s.
        differentiable: the arguments that have a derivative in ATen.
        nondifferentiable_outputs: the indices of the results which never require a gradient.
        base: for kind inplace and out, the functional overload that computes the values; a user's with its namespace.
        namespace: `jaten` for our own, the user's for theirs.
    """

    schema: str
    kind: _Kind = "functional"
    tags: frozenset[str] = frozenset()
    differentiable: tuple[str, ...] = ()
    nondifferentiable_outputs: tuple[int, ...] = ()
    base: str = ""
    namespace: str = "jaten"

    @cached_property
    def overload(self) -> str:
        """`add.Tensor`; the default overload has no suffix: `relu`."""
        return self.schema.partition("(")[0]

    @property
    def name(self) -> str:
        """`jaten::add.Tensor`."""
        return f"{self.namespace}::{self.overload}"

    @property
    def packet(self) -> str:
        return self.overload.partition(".")[0]

    @cached_property
    def parsed(self) -> Any:
        """The schema as torch parses it; RuntimeError if it is none."""
        return torch._C.parse_schema(self.schema)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(
            Argument(a.name, _type_name(a.real_type), _default_of(a), a.has_default_value(), a.kwarg_only)
            for a in self.parsed.arguments
        )

    @cached_property
    def returns(self) -> tuple[str, ...]:
        """The types of the results, spelled as in the schema."""
        return tuple(_type_name(r.real_type) for r in self.parsed.returns)

    @property
    def _parameters(self) -> str:
        """The text between the parentheses, from which some properties are read without parsing it."""
        return self.schema[len(self.overload) : self.schema.rindex(" ->")]

    @property
    def takes_tensor(self) -> bool:
        """True if one of the arguments is a Tensor, neither optional nor a list."""
        return "Tensor " in self._parameters

    @property
    def takes_device(self) -> bool:
        """True if an argument names the device on which the result is made."""
        return "Device" in self._parameters

    @property
    def takes_no_tensors(self) -> bool:
        """True if no argument can hold a tensor."""
        return "Tensor" not in self._parameters

    @property
    def random(self) -> bool:
        """True if the values depend on a random number generator."""
        return "nondeterministic_seeded" in self.tags

    @cached_property
    def draws_by(self) -> dict[int, Callable[[Any], bool]]:
        """Tests of the arguments, by position, that can turn off the draws of a call; it draws if all are true.

        Only for ATen's operators: in a user's operator such a name may mean something else.
        """
        arguments = self.arguments if self.random and self.namespace == "jaten" else ()
        return {i: DRAWS[a.name] for i, a in enumerate(arguments) if a.name in DRAWS}

    def draws(self, values: Sequence[Any]) -> bool:
        """True if a call with these arguments, in schema order, draws random numbers."""
        return self.random and all(does(values[i]) for i, does in self.draws_by.items())

    def functional_form(self) -> OpSpec:
        """The op that computes what this one, of a user, writes to arguments.

        `f(Tensor(a!) x, Tensor y) -> Tensor` has `f_functional(Tensor x, Tensor y) -> (Tensor, Tensor)`, whose results
        are those of `f` and then the new values.
        """
        packet, _, suffix = self.overload.partition(".")
        name = f"{packet}_functional" + (f".{suffix}" if suffix else "")
        own = [_type_name(r.real_type) for r in self.parsed.returns if r.alias_info is None]
        written = [_type_name(a.real_type) for a in self.parsed.arguments if a.alias_info is not None]
        returns = ", ".join([*own, *written])
        parameters = _ALIASES.sub("", self._parameters.removeprefix("(").removesuffix(")"))
        return replace(self, schema=f"{name}({parameters}) -> {returns if len(own + written) == 1 else f'({returns})'}")

    def to_line(self) -> str:
        """The line of generated data that `from_line` reads back."""
        outputs = ",".join(map(str, self.nondifferentiable_outputs))
        fields = [
            self.schema,
            self.kind,
            ",".join(sorted(self.tags)),
            ",".join(self.differentiable),
            outputs,
            self.base,
        ]
        return _SEPARATOR.join(field or "-" for field in fields)

    @classmethod
    def from_line(cls, line: str) -> OpSpec:
        schema, kind, tags, differentiable, outputs, base = (
            "" if field == "-" else field for field in line.rstrip("\n").split(_SEPARATOR)
        )
        return cls(
            schema=schema,
            kind=kind,  # type: ignore[arg-type]  # the generator writes only the literals of Kind
            tags=frozenset(tags.split(",")) - {""},
            differentiable=tuple(differentiable.split(",")) if differentiable else (),
            nondifferentiable_outputs=tuple(map(int, outputs.split(","))) if outputs else (),
            base=base,
        )
