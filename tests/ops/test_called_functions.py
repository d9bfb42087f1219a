"""`call_jax`: arguments, new lambdas of the same code, sizes, exported programs in another process."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import jaten_ops
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.ops import called_functions

x = torch.linspace(0, 1, 4)


class Pair(NamedTuple):
    first: Any
    second: Any


def _of_all(tree: Any, pair: Pair, *, mode: str, scale: float, n: int, nothing: None) -> Any:
    assert nothing is None and type(n) is int and mode == "sum"
    return {"a": [tree["x"] * scale, (pair.first + n, None)], "b": pair.second[0].sum()}


def _call(fn: Callable[..., Any], x: Tensor, scale: float = 2.0) -> Any:
    return fn({"x": x, "k": 3}, Pair(x * 2, [x, "s"]), mode="sum", scale=scale, n=3, nothing=None)


@pytest.mark.parametrize("way", ["direct", "device", "compiled"])
def test_arguments(way: str) -> None:
    torch._dynamo.reset()
    fn = functools.partial(_call, lambda *args, **kwargs: jaten_ops.call_jax(_of_all, *args, **kwargs))

    def run(x: Tensor) -> Any:
        return jaten_ops.call_jax(_of_all, {"x": x}, (x, [x]), mode="sum", scale=2.0, n=3, nothing=None)

    if way == "compiled":
        expected = {"a": [x * 2, (x + 3, None)], "b": x.sum()}
        plain = torch.compile(
            lambda x: jaten_ops.call_jax(lambda t, n, *, s: {"a": [t["x"] * s, (t["x"] + n, None)], "b": t["x"].sum()},
                                         {"x": x}, 3, s=2.0), backend="jaten", fullgraph=True)  # fmt: skip
        assert_close(plain(x), expected)
        return
    got = fn(x.to("jax") if way == "device" else x)
    assert got["a"][1][1] is None
    assert_close([got["a"][0].cpu(), got["a"][1][0].cpu(), got["b"].cpu()], [x * 2, x * 2 + 3, x.sum()])


def test_floats_are_traced_and_other_numbers_static() -> None:
    traces: list[Any] = []

    def fn(x: Any, scale: Any, n: int) -> Any:
        traces.append(n)
        return x * scale + n

    for scale in (1.5, 2.5, 3.5):
        assert_close(jaten_ops.call_jax(fn, x, scale, 2), x * scale + 2)
    assert traces == [2]
    assert_close(jaten_ops.call_jax(lambda a, flag: a + 1 if flag is True else a, x, 1), x)
    assert_close(jaten_ops.call_jax(lambda a, flag: a + 1 if flag is True else a, x, True), x + 1)
    with pytest.raises(UnsupportedInputError, match="an argument of call_jax"):
        jaten_ops.call_jax(fn, x, object(), 2)


def test_a_new_lambda_of_the_same_code_is_the_same_function() -> None:
    def once(n: int, i: int) -> Tensor:
        return jaten_ops.call_jax(lambda a: a * n, x) + jaten_ops.call_jax(functools.partial(jnp.power, 2.0), x)

    once(3, 0)
    operators = len(torch._C._dispatch_get_all_op_names())
    held, structures = len(called_functions._held), len(called_functions._structures)
    for i in range(20):
        assert_close(once(3, i), x * 3 + 2.0**x)
    assert (len(called_functions._held), len(called_functions._structures)) == (held, structures)
    assert_close(once(4, 0), x * 4 + 2.0**x)
    assert len(torch._C._dispatch_get_all_op_names()) == operators


def test_functions_without_a_name_are_held_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called_functions, "_HELD", 3)
    for i in range(9):
        array = jnp.full(4, float(i))
        assert_close(jaten_ops.call_jax(lambda a, array=array: a + array, x), x + i)
    assert len(called_functions._held) == 3


def test_a_functions_own_state_is_not_shared() -> None:
    cell = 1

    def make(value: Any) -> Callable[..., Any]:
        return lambda a: a + value

    assert_close([jaten_ops.call_jax(make(v), x) for v in (1, 1.0, True, jnp.ones(4))], [x + cell] * 4)
    assert_close([jaten_ops.call_jax(make(jnp.full(4, v)), x) for v in (1.0, 2.0)], [x + 1, x + 2])


def test_one_graph_serves_all_sizes() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("jaten")
    compiled = torch.compile(
        lambda x: jaten_ops.call_jax(lambda a: (a * 2, {"sum": a.sum()}), x), backend=counter, dynamic=True
    )
    for n in (3, 5, 8):
        double, rest = compiled(torch.ones(n))
        assert double.tolist() == [2] * n and rest["sum"] == n
    assert counter.frame_count == 1


_LOADED = """
import sys
import torch, jaten_ops, {module}
print(torch.export.load(sys.argv[1]).module()(torch.ones(2)).tolist())
"""


def test_exported_programs_load_in_another_process(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return jaten_ops.call_jax(jnp.cumsum, x) + jaten_ops.call_jax(jnp.power, x, 2.0)

    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Module(), (torch.ones(2),)), path)
    program = _LOADED.format(module="jax.numpy")
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2.0, 3.0]", done.stderr[-2000:]
