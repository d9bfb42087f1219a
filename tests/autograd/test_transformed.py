"""Transforms of torch.func, autograd and forward-mode differentiation, nested, of jaten's and users' operators."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import compiled_autograd
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.functional import jacobian
from torch.func import functionalize, grad, hessian, jvp, linearize, vmap
from torch.testing import assert_close

import jaten_ops

from ..programs.transformed import NAMESPACE, PROGRAMS, Vector, transformed

jaten = torch.ops.jaten
X = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)

_FUNCTIONAL = ("grad", "jvp", "vmap", "vjp")
EAGER = [
    *(" ".join(names) for depth in (1, 2, 3) for names in itertools.product(_FUNCTIONAL, repeat=depth)),
    *("jacfwd jacrev", "jacrev jacrev", "jacfwd jacfwd", "autograd autograd", "autograd autograd autograd"),
    *("autograd grad", "autograd vjp", "autograd jvp", "autograd vmap grad", "dual autograd", "dual grad", "dual vmap"),
]
COMPILED = ["grad grad", "jvp grad", "grad jvp", "jvp jvp", "vmap grad", "grad vmap", "grad grad grad", "jacfwd jacrev"]


def _sample(programs: Iterable[str], words: list[str], ways: list[Any], stride: int, start: int) -> list[Any]:
    """Each program with each of the transforms in each way; one in `stride` pairs runs by default, the ways in turn."""
    found, turns = [], itertools.cycle(ways)
    for (p, program), (w, word) in itertools.product(enumerate(programs), enumerate(words)):
        usual = next(turns) if (w - 5 * p) % stride == start else None
        for way in ways:
            marks = [] if way == usual else [pytest.mark.exhaustive]
            found.append(pytest.param(way, program, word, marks=marks, id=f"{'-'.join(way)}-{program}: {word}"))
    return found


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def _holds(got: Vector, expected: torch.Tensor, device: str = "cpu") -> None:
    result = got(X.to(device))
    assert result.device.type == device
    assert_close(result.cpu(), expected)


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("way", "program", "names"), _sample(PROGRAMS, EAGER, [("cpu",), ("jax",)], 41, 0))
def test_eager(way: tuple[str], program: str, names: str) -> None:
    (device,) = way
    got, expected = (transformed(fn, names) for fn in PROGRAMS[program])
    try:
        result = expected(X)
    except RuntimeError as error:
        # the third derivative, where the second is constant: ATen has no history of it, direct operators have zeros
        assert "does not require grad" in str(error)
        _holds(got, torch.zeros_like(X), device)
    else:
        _holds(got, result, device)


_COMPILED_WAYS = [("cpu", "jaten"), ("jax", "jaten"), ("cpu", "aot_eager"), ("cpu", "eager")]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("way", "program", "names"), _sample([p for p in PROGRAMS if p != "random"], COMPILED, _COMPILED_WAYS, 19, 1)
)
def test_compiled(way: tuple[str, str], program: str, names: str) -> None:
    device, backend = way
    got, expected = PROGRAMS[program]
    compiled = torch.compile(transformed(got, names), backend=backend, fullgraph=True)
    _holds(compiled, transformed(expected, names)(X), device)


def _cube(x: torch.Tensor) -> torch.Tensor:
    return jaten.mul.Tensor(jaten.mul.Tensor(x, x), x)


def _by_backward(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        fn(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad

    return run


def _adapted(x: torch.Tensor) -> torch.Tensor:
    """A loss after a step of gradient descent, as in MAML."""
    return _cube(x - 0.1 * grad(_cube)(x))


# what gives the second derivative of x ** 3 at 2, or says otherwise what it gives
SECOND: dict[str, tuple[Callable[[torch.Tensor], Any], float]] = {
    "grad of grad": (grad(grad(_cube)), 12),
    "hessian": (hessian(_cube), 12),
    "three times": (grad(grad(grad(_cube))), 6),
    "grad and backward": (_by_backward(grad(_cube)), 12),
    "vjp and backward": (_by_backward(lambda x: torch.func.vjp(_cube, x)[1](torch.ones_like(x))[0]), 12),
    "steps of adaptation": (_by_backward(_adapted), 3 * (2 - 0.1 * 12) ** 2 * (1 - 0.1 * 12)),
    "linearize": (lambda x: linearize(grad(_cube), x)[1](torch.ones_like(x)), 12),
    "functionalize": (functionalize(grad(grad(_cube))), 12),
    "jacobian": (lambda x: jacobian(grad(_cube), x, vectorize=True), 12),
    "cut off": (grad(grad(lambda x: _cube(x).detach() + _cube(x))), 12),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_second_derivatives(device: str, name: str) -> None:
    fn, expected = SECOND[name]
    assert fn(torch.tensor(2.0, dtype=torch.float64, device=device)).item() == pytest.approx(expected)


CHECKED = ("product", "user, by a formula", "user, several results", "call_jax", "complex", "written by index")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHECKED)
def test_numerically(name: str) -> None:
    fn, x = PROGRAMS[name][0], X.clone().requires_grad_()
    assert gradcheck(fn, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(fn, x, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_transforms_leave_what_no_grad_says() -> None:
    def constant(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return _cube(x)

    x = torch.tensor(2.0, requires_grad=True)
    assert grad(lambda x: x * constant(x))(x).item() == 8
    assert not constant(x).requires_grad
    with torch.no_grad():
        assert not grad(_cube)(x).requires_grad


def test_a_tangent_requires_a_gradient_only_if_something_does() -> None:
    x, one = torch.tensor(2.0), torch.tensor(1.0)
    fn = getattr(torch.ops, NAMESPACE).cubed
    with torch.autograd.forward_ad.dual_level():
        for requires in (False, True):
            dual = fn(torch.autograd.forward_ad.make_dual(x.clone().requires_grad_(requires), one))
            assert torch.autograd.forward_ad.unpack_dual(dual).tangent.requires_grad == requires


def test_companions_are_there_by_name() -> None:
    """As a graph names them that another process has kept."""
    op = jaten.special_log_ndtr_vjp_vjp_vjp.default
    assert str(op._schema).startswith("jaten::special_log_ndtr_vjp_vjp_vjp(")
    with pytest.raises(AttributeError, match="no_such_vjp"):
        jaten.no_such_vjp  # noqa: B018  # it is the access that raises


def test_companions_are_defined_by_several_threads() -> None:
    schema = f"{NAMESPACE}::squared_in_threads(Tensor output_mask) -> Tensor"
    jaten_ops.op(schema, differentiable=["output_mask"])(lambda x: x * x * x)
    op = getattr(torch.ops, NAMESPACE).squared_in_threads
    barrier, found = threading.Barrier(4), []

    def run() -> None:
        barrier.wait()
        found.append(grad(grad(grad(op)))(torch.tensor(2.0)).item())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6] * 4


TRACED = ("product", "list", "written by index", "user, lists", "user, by a formula", "call_jax", "convolution")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TRACED)
def test_compiled_autograd(name: str) -> None:
    """Dynamo traces the backward pass of direct calls without a break."""
    got, expected = PROGRAMS[name]
    one, two = (X.clone().requires_grad_() for _ in range(2))
    expected(one).sin().sum().backward()
    loss = got(two).sin().sum()
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="jaten", fullgraph=True)):
        loss.backward()
    assert_close(two.grad, one.grad)


def test_compiled_autograd_of_a_compiled_step() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = PROGRAMS["user"][0](x).sum()
        loss.backward()
        return loss

    one, two = (X.clone().requires_grad_() for _ in range(2))
    PROGRAMS["user"][1](one).sum().backward()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="jaten")(two)
    assert_close(two.grad, one.grad)


def test_vmap_and_jvp_of_what_has_no_derivative() -> None:
    primal, tangent = jvp(lambda x: jaten.gt.Scalar(x, 0.5), (X,), (X,))
    assert primal.tolist() == [False, False, True] and not tangent.any()
    assert vmap(lambda x: jaten.argsort(x))(X[None]).tolist() == [[1, 0, 2]]
