"""What ATen refuses, jaten refuses too, with an exception of the same class: PyTorch's own samples of wrong inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jaten_ops.schema import VARIANTS

from . import exceptions
from .replay import OP_INFOS, callable_overload, describe_call, jaten_overload, op_named
from .test_ops import NAMES, _every


def _overload(func: Any, args: Any) -> str | None:
    """The jaten overload, functional or variant, that takes the arguments of an ATen call."""
    found = jaten_overload(func)
    if found is not None:
        return callable_overload(found, args)
    name = func._schema.name.removeprefix("aten::") + f".{func._schema.overload_name}".removesuffix(".")
    spec = VARIANTS.get(name)
    return name if spec is not None and "inplace_view" not in spec.tags else None


class Errors(TorchDispatchMode):
    """Makes each ATen call that raises once more with jaten, and notes if that does not raise the same class."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = 0
        self.failures: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as error:
            overload = _overload(func, args)
            if overload is not None:
                self.compared += 1
                got = _raised(op_named(overload), args, kwargs)
                if type(got) is not type(error):
                    self.failures.append(f"{describe_call(overload, args, kwargs)}: got {got!r}, expected {error!r}")
            raise


def _raised(op: Any, args: Any, kwargs: Any) -> Exception | None:
    try:
        op(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _compare(name: str) -> Errors:
    op = OP_INFOS[name]
    mode = Errors()
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        with mode:
            _raised(op, (sample.input, *sample.args), sample.kwargs)
    return mode


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


WITH_ERRORS = [n for n in NAMES if OP_INFOS[n].error_inputs_func is not None]


@pytest.mark.parametrize("name", _every(4, WITH_ERRORS))
def test_error_inputs(name: str, request: pytest.FixtureRequest) -> None:
    """Errors that ATen raises before an operator is reached (in Python, in a composite) are not jaten's."""
    exceptions.apply(request, "errors", name, torch.float32)
    mode = _compare(name)
    assert not mode.failures, "\n".join(mode.failures[:5])
