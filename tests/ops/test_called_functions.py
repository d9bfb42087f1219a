"""`call_jax`: arguments, new lambdas of the same code, sizes, exported programs in another process."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import jaten_ops
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.ops import called_functions, function_names

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
    tables = function_names._labels, called_functions.FILLERS, called_functions._of_shapes, called_functions._sources
    before = list(map(len, tables))
    for i in range(20):
        assert_close(once(3, i), x * 3 + 2.0**x)
    assert list(map(len, tables)) == before
    assert_close(once(4, 0), x * 4 + 2.0**x)
    assert len(torch._C._dispatch_get_all_op_names()) == operators


Held = Callable[[Callable[..., Any], Tensor], Tensor]
HOLDERS: dict[str, Held] = {
    "nothing": lambda make, x: jaten_ops.call_jax(make(), x),
    "autograd": lambda make, x: jaten_ops.call_jax(make(), x.requires_grad_()),
    "autograd on the device": lambda make, x: jaten_ops.call_jax(make(), x.to("jax").requires_grad_()),
    "a second derivative": lambda make, x: torch.autograd.grad(
        jaten_ops.call_jax(make(), x.requires_grad_()).sum(), x, create_graph=True
    )[0],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_function_with_an_array_lives_as_long_as_what_may_call_it(holder: str) -> None:
    alive: list[weakref.ref[Any]] = []

    def make() -> Callable[..., Any]:
        array = jnp.arange(4.0)

        def fn(a: jax.Array) -> jax.Array:
            return a * a * a * array

        alive.append(weakref.ref(fn))
        return fn

    results = [HOLDERS[holder](make, x.clone()) for _ in range(3)]
    gc.collect()
    assert [ref() is not None for ref in alive] == [holder != "nothing"] * 3
    for result in results:
        assert_close(result.detach().cpu(), (3 * x**2 if "second" in holder else x**3) * torch.arange(4.0))
        if holder != "nothing":
            result.sum().backward()
    del results, result
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def _with_array(scale: float) -> Callable[..., Any]:
    array = jnp.arange(4.0) * scale
    return lambda a: a * a * array


CAPTURES: dict[str, Callable[[Callable[..., Any]], Callable[[Tensor], Tensor]]] = {
    "compiled": lambda fn: torch.compile(lambda x: jaten_ops.call_jax(fn, x), backend="jaten", fullgraph=True),
    "another backend": lambda fn: torch.compile(lambda x: jaten_ops.call_jax(fn, x), backend="aot_eager"),
    "make_fx": lambda fn: make_fx(lambda x: jaten_ops.call_jax(fn, x), tracing_mode="fake")(x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", CAPTURES)
def test_a_graph_keeps_the_functions_that_it_calls(way: str) -> None:
    torch._dynamo.reset()
    graphs = [CAPTURES[way](_with_array(scale)) for scale in (1.0, 2.0)]
    for _ in range(2):
        gc.collect()
        for scale, graph in zip((1.0, 2.0), graphs, strict=True):
            leaf = x.clone().requires_grad_()
            result = graph(leaf)
            gc.collect()
            result.sum().backward()
            weight = torch.arange(4.0) * scale
            assert leaf.grad is not None
            assert_close([result, leaf.grad], [x * x * weight, 2 * x * weight])


def test_only_the_last_structures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called_functions, "_KEPT", 3)

    def parts(a: Any) -> Any:
        return [a] * a.shape[0] if a.shape[0] < 4 else {"a": (a, a.sum())}

    for sizes in (range(1, 9), range(1, 9)):
        for n in sizes:
            got = jaten_ops.call_jax(parts, torch.ones(n))
            assert len(got) == n if n < 4 else got["a"][1] == n
    assert len(called_functions.FILLERS) <= 3 and len(called_functions._of_shapes) <= 3


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


_OF_MAIN = """
import sys
import torch, jaten_ops

def twice(a):
    return a * 2

class Module(torch.nn.Module):
    def forward(self, x):
        return jaten_ops.call_jax(twice, x) + jaten_ops.call_jax(lambda a: a + 1, x)

program = torch.export.export(Module(), (torch.ones(2),))
print(program.module()(torch.ones(2)).tolist())
torch.export.save(program, sys.argv[1])
"""


def _run_program(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
def test_a_function_of_main_is_missed_in_words(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    assert _run_program(_OF_MAIN, path).stdout.strip() == "[4.0, 4.0]"
    done = _run_program(_LOADED.format(module="jax.numpy"), path)
    assert f"__main__:twice (line 5), {_MISSED}" in done.stderr, done.stderr[-2000:]


_MISSED = "which this program does not have, expected a function that a module has under its name, other than __main__"

UNKNOWN: dict[str, tuple[Any, str]] = {
    "of main": (("code", "__main__:f:5:0123", (), None, ()), rf"__main__:f \(line 5\), {_MISSED}"),
    "of a module": ("no_such_module:f", "expected a program that has imported no_such_module"),
    "with arrays": (3, "a function that is gone"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_functions_that_are_unknown_are_told(name: str) -> None:
    written, says = UNKNOWN[name]
    with pytest.raises(UnsupportedInputError, match=says):
        torch.ops.jaten_call.call([x], None, repr((written, ((("tensor",),), ()))))


_LOADED = """
import sys
import torch, jaten_ops, {module}
print(torch.export.load(sys.argv[1]).module()(torch.ones(2)).tolist())
"""


@pytest.mark.exhaustive
def test_exported_programs_load_in_another_process(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return jaten_ops.call_jax(jnp.cumsum, x) + jaten_ops.call_jax(jnp.power, x, 2.0)

    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Module(), (torch.ones(2),)), path)
    program = _LOADED.format(module="jax.numpy")
    done = _run_program(program, path)
    assert done.stdout.strip() == "[2.0, 3.0]", done.stderr[-2000:]
