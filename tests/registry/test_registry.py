"""The tables of kernels, fakes and gradients: what they refuse, and what they say."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import jaten_ops
from jaten_ops import errors, registry
from jaten_ops.errors import DuplicateRegistrationError, JatenError, MissingKernelError, UnknownOpError
from jaten_ops.schema import FUNCTIONAL

REGISTERS = {"kernel": jaten_ops.kernel, "fake": jaten_ops.fake, "gradient": registry.gradient}
TABLES = {"kernel": "KERNELS", "fake": "FAKES", "gradient": "GRADIENTS"}

# (Tensor self, Tensor other) -> Tensor; it exists for PyTorch's own tests, and so will never have a kernel
SPARE = "_test_functorch_fallback"
SPARE_OP = torch.ops.jaten._test_functorch_fallback


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of this test's own."""
    for table in TABLES.values():
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


def _zero(*args: object) -> object:
    return args[0]


@pytest.mark.parametrize("what", REGISTERS)
def test_duplicates_name_both_places(what: str) -> None:
    REGISTERS[what](SPARE)(_zero)
    with pytest.raises(DuplicateRegistrationError) as raised:
        REGISTERS[what](SPARE)(_zero)
    places = re.findall(rf"{Path(__file__).name}:(\d+)", str(raised.value))
    assert len(set(places)) == 2 and f"{SPARE}: {what} registered twice" in str(raised.value)


@pytest.mark.parametrize("what", REGISTERS)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ad.Tensor", "add.Tensor"),  # a slip of the pen
        ("add", "add.Tensor"),  # a packet: which of its overloads?
        ("add_.Tensor", "add.Tensor"),  # in-place forms are derived
        ("aten::add.Tensor", "add.Tensor"),
    ],
)
def test_unknown_names_raise_with_close_matches(what: str, name: str, hint: str) -> None:
    with pytest.raises(UnknownOpError) as raised:
        REGISTERS[what](name)(_zero)
    text = str(raised.value)
    assert text.startswith(f"{name}: no such operator overload") and f"{Path(__file__).name}:" in text
    assert hint in text.partition("Did you mean")[2].partition("?")[0].split(", ")[0]


def test_no_name_is_registered_if_one_is_unknown() -> None:
    with pytest.raises(UnknownOpError):
        jaten_ops.kernel(SPARE, "no_such_operator")(_zero)
    assert SPARE not in registry.KERNELS


def test_hints_name_no_companions() -> None:
    with pytest.raises(UnknownOpError) as raised:
        jaten_ops.kernel("add_vjp.Tensr")(_zero)
    assert "_vjp" not in str(raised.value).partition("Did you mean")[2]


CATCHES: list[tuple[type[JatenError], type[Exception]]] = [
    (UnknownOpError, LookupError),
    (DuplicateRegistrationError, ValueError),
    (MissingKernelError, NotImplementedError),
]


@pytest.mark.parametrize(("error", "standard"), CATCHES)
def test_errors_are_pythons_too(error: type[JatenError], standard: type[Exception]) -> None:
    assert issubclass(error, standard) and issubclass(error, JatenError)


CALLS: dict[str, Callable[[], object]] = {
    "with tensors": lambda: SPARE_OP(torch.ones(2), torch.ones(2)),
    "with gradients": lambda: SPARE_OP(torch.ones(2, requires_grad=True), torch.ones(2)),
    "without tensors": lambda: torch.ops.jaten.sparse_coo_tensor.size([2, 2], device="cpu"),
    "a layout on the device": lambda: torch.eye(2, device="jax").to_sparse(),
    "out=": lambda: torch.ops.jaten._test_functorch_fallback.out(torch.ones(2), torch.ones(2), out=torch.ones(2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_missing_kernel_is_named_with_what_to_do(call: str) -> None:
    with pytest.raises(MissingKernelError, match=r"^jaten::\S+ has no kernel") as raised:
        CALLS[call]()
    name = str(raised.value).split()[0].removeprefix("jaten::")
    reason = registry.reason_of(name.removesuffix(".out"))
    told = (f"jaten_ops.kernel({name!r})", "CONTRIBUTING.md") if reason is None else (f"({reason})", "dense")
    assert all(text in str(raised.value) for text in told)


def test_contributing_has_the_section_that_errors_point_to() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.search(r"^## Adding a kernel$", text, re.MULTILINE)


def test_a_kernel_may_be_registered_after_the_import() -> None:
    with pytest.raises(MissingKernelError):
        SPARE_OP(torch.ones(2), torch.ones(2))
    jaten_ops.kernel(SPARE)(lambda self, other: self + 2 * other)
    assert SPARE_OP(torch.ones(2), torch.ones(2)).tolist() == [3, 3]


def test_places_are_those_of_the_kernels() -> None:
    for overload in FUNCTIONAL.keys() & registry.KERNELS.keys():
        file, _, line = registry.KERNELS[overload].where.rpartition(":")
        assert Path(file).parent.name == "kernels" and line.isdigit(), overload


@pytest.mark.parametrize(("name", "meant"), [("reluu", "relu"), ("sofmax", "softmax"), ("matmull", "matmul")])
def test_unknown_operators_have_suggestions(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name}.*Did you mean .*torch\.ops\.jaten\.{meant}\b"):
        getattr(torch.ops.jaten, name)


def test_no_name_is_looked_for_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks for each name before it defines an operator."""

    def refuse(*args: object, **kwargs: object) -> list[str]:
        raise AssertionError

    monkeypatch.setattr(difflib, "get_close_matches", refuse)
    assert not hasattr(torch.ops.jaten, "reluu")


def test_all_errors_are_exported() -> None:
    found = {n for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, JatenError)}
    assert found <= set(jaten_ops.__all__)
    assert all(getattr(jaten_ops, n) is getattr(errors, n) and getattr(errors, n).__doc__ for n in found)
