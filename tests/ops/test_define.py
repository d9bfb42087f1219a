"""`jaten_ops.op`: a user's JAX function as a torch operator, by the path of the built-in ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from torch.testing import assert_close

import jaten_ops
from jaten_ops import registry
from jaten_ops.errors import DuplicateRegistrationError, GradientRegistrationError, JatenError, UnknownOpError

NAMESPACE = "jaten_test_library"
OPS = getattr(torch.ops, NAMESPACE)


def _op(schema: str, **options: Any) -> Callable[[Callable], Callable]:
    return jaten_ops.op(f"{NAMESPACE}::{schema}", **options)


@_op("swish(Tensor x, float beta=1.0) -> Tensor", differentiable=["x"])
def swish(x, beta):
    return x * jax.nn.sigmoid(beta * x)


@_op("halves(Tensor x, Tensor? bias, int dim=0) -> (Tensor, Tensor)", differentiable=["x", "bias"])
def halves(x, bias, dim):
    first, second = jnp.split(x if bias is None else x + bias, 2, dim)
    return first, second


@_op("total(Tensor[] xs) -> Tensor", differentiable=["xs"])
def total(xs):
    return sum(xs)


@_op("scaled.each(Tensor[] xs, Scalar factor) -> Tensor[]", differentiable=["xs"])
def scaled_each(xs, factor):
    return [x * factor for x in xs]


@_op("blend(Tensor x, *, Tensor y, bool flip=False) -> Tensor", differentiable=["x", "y"])
def blend(x, *, y, flip):
    return x - y if flip else x + 2 * y


@_op("straight_through(Tensor x) -> Tensor", differentiable=["x"])
def straight_through(x):
    return jnp.round(x)


@jaten_ops.gradient(f"{NAMESPACE}::straight_through")
def straight_through_gradient(grads, args, results):
    return {"x": grads[0]}


@_op("doubled(Tensor x) -> Tensor")
def doubled(x):
    return jnp.concatenate([x, x])


@jaten_ops.fake(f"{NAMESPACE}::doubled")
def doubled_fake(x):
    return x.new_empty((2 * x.shape[0], *x.shape[1:]))


@_op("noise(Tensor x, float scale) -> Tensor", tags=["nondeterministic_seeded"])
def noise(x, scale, *, key):
    return x + scale * jax.random.normal(key, x.shape, x.dtype)


@_op("same(Tensor x) -> Tensor")
def same(x):
    return x


@_op("power(Tensor x, Scalar exponent) -> Tensor", static=["exponent"])
def power(x, exponent):
    assert isinstance(exponent, int)
    return x**exponent


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def _leaf(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


# operator, arguments, what torch says that it is
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Callable[..., Any]]] = {
    "swish": (OPS.swish.default, (_leaf(3, 4), 1.5), {}, lambda x, beta: x * torch.sigmoid(beta * x)),
    "default": (OPS.swish.default, (_leaf(3, 4),), {}, torch.nn.functional.silu),
    "two results": (OPS.halves.default, (_leaf(4, 2), None), {}, lambda x, bias: tuple(x.chunk(2))),
    "optional": (
        OPS.halves.default,
        (_leaf(4, 2), _leaf(2), 1),
        {},
        lambda x, bias, dim: tuple((x + bias).chunk(2, dim)),
    ),
    "list": (OPS.total.default, ([_leaf(3), _leaf(3)],), {}, lambda xs: sum(xs)),
    "list of results": (OPS.scaled.each, ([_leaf(3), _leaf(2)], 3), {}, lambda xs, f: [x * f for x in xs]),
    "keywords": (OPS.blend.default, (_leaf(3),), {"y": _leaf(3), "flip": True}, lambda x, y, flip: x - y),
    "own gradient": (OPS.straight_through.default, (_leaf(3),), {}, torch.round),
    "own fake": (OPS.doubled.default, (_leaf(3).detach(),), {}, lambda x: torch.cat([x, x])),
    "static": (OPS.power.default, (_leaf(3).detach(), 3), {}, lambda x, exponent: x**exponent),
    "empty": (OPS.swish.default, (_leaf(0, 4),), {}, torch.nn.functional.silu),
}


@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    op, args, kwargs, expected = CALLS[name]
    assert_close(op(*args, **kwargs), expected(*args, **kwargs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    op, args, kwargs, _ = CALLS[name]
    torch.library.opcheck(op, args, kwargs)


@pytest.mark.parametrize("name", ["swish", "two results", "optional"])
def test_gradients_of_both_orders(name: str) -> None:
    op, args, kwargs, _ = CALLS[name]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return op(*(next(given) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)

    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


def test_gradients_of_lists() -> None:
    assert torch.autograd.gradcheck(lambda x, y: OPS.total([x, y]), (_leaf(3), _leaf(3)))
    assert torch.autograd.gradcheck(lambda x, y: tuple(OPS.scaled.each([x, y], 3)), (_leaf(3), _leaf(2)))


def test_batched_lists() -> None:
    """Torch's own loop for an operator without a batching rule takes no lists."""
    x, y = _leaf(4, 3), _leaf(4, 3)
    assert_close(torch.vmap(lambda x, y: OPS.total([x, y]))(x, y), x + y)
    assert_close(torch.vmap(lambda x, y: tuple(OPS.scaled.each([x, y], 3)))(x, y), (3 * x, 3 * y))


def test_random_ops_follow_the_randomness_of_a_batch() -> None:
    x = torch.zeros(3, 8)
    with pytest.raises(RuntimeError, match="noise"):
        torch.vmap(lambda x: OPS.noise(x, 1.0))(x)
    same = torch.vmap(lambda x: OPS.noise(x, 1.0), randomness="same")(x)
    different = torch.vmap(lambda x: OPS.noise(x, 1.0), randomness="different")(x)
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])


def test_a_users_batching_rule() -> None:
    """Other operators are left to `torch.library.register_vmap`."""
    rule = _op("batched_itself(Tensor x) -> Tensor")
    rule(lambda x: x + 1)
    torch.library.register_vmap(f"{NAMESPACE}::batched_itself", lambda info, in_dims, x: (x + 2, in_dims[0]))
    assert torch.vmap(OPS.batched_itself)(torch.zeros(2)).tolist() == [2, 2]


def test_registered_gradient_is_used() -> None:
    x = _leaf(3)
    OPS.straight_through(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["jaten", "aot_eager"])
@pytest.mark.parametrize("name", CALLS)
def test_compiled(name: str, backend: str) -> None:
    op, args, kwargs, expected = CALLS[name]
    got = torch.compile(lambda *a, **k: op(*a, **k), backend=backend, fullgraph=True)(*args, **kwargs)
    assert_close(got, expected(*args, **kwargs))


NUMBERS_ON_THE_CPU = {
    "an operand": lambda x, number: x * number,
    "in a list": lambda x, number: torch._foreach_mul([x, x], [number, number])[1],
    "of a list": lambda x, number: torch._foreach_mul([x], number)[0],
    "a value": lambda x, number: torch.where(x > 0, number, x),
}


@pytest.mark.parametrize("backend", ["jaten", "aot_eager"])
@pytest.mark.parametrize("name", NUMBERS_ON_THE_CPU)
def test_compiled_with_a_number_on_the_cpu(name: str, backend: str) -> None:
    compiled = torch.compile(NUMBERS_ON_THE_CPU[name], backend=backend, fullgraph=True)
    got = compiled(torch.ones(2, device="jax"), torch.tensor(2.0))
    assert (got.tolist(), got.device.type) == ([2, 2], "jax")


@pytest.mark.parametrize("name", ["swish", "own fake"])
def test_compiled_for_any_size(name: str) -> None:
    op, args, _, expected = CALLS[name]
    counter = torch._dynamo.testing.CompileCounterWithBackend("jaten")
    fn = torch.compile(lambda x: op(x, *args[1:]), backend=counter, fullgraph=True, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        assert_close(fn(x), expected(x, *args[1:]))
    # a fake that is the traced kernel has concrete sizes, one that is registered may have symbols
    assert name == "swish" or counter.frame_count == 1


def test_on_the_device_jax() -> None:
    x = torch.randn(3, 4)
    got = OPS.swish(x.to("jax"), 1.5)
    assert isinstance(got, jaten_ops.Tensor)
    assert_close(got.cpu(), OPS.swish(x, 1.5))


def test_random_op_follows_the_seed() -> None:
    x = torch.zeros(4)
    first, second = OPS.noise(x, 1.0), OPS.noise(x, 1.0)
    torch.manual_seed(0)
    assert torch.equal(OPS.noise(x, 1.0), first) and not torch.equal(first, second)
    torch.library.opcheck(OPS.noise.default, (x, 1.0))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_two_random_calls_stay_two(training: bool) -> None:
    """Compilers merge equal calls, but not of an operator that torch knows to be random."""
    weight = torch.ones(4, requires_grad=training)
    fn = torch.compile(lambda x, w: (OPS.noise(x, 1.0) - OPS.noise(x, 1.0)) * w, backend="jaten")
    assert fn(torch.zeros(4), weight).abs().min() > 0
    assert torch.Tag.nondeterministic_seeded in OPS.noise.default.tags


def test_a_result_is_never_an_argument() -> None:
    x = torch.ones(64)
    y = OPS.same(x)
    y.zero_()
    assert x.min() == 1


def test_duplicates_name_both_places_and_keep_the_first() -> None:
    schema = f"{NAMESPACE}::twice(Tensor x) -> Tensor"
    jaten_ops.op(schema)(lambda x: x + 0)
    with pytest.raises(DuplicateRegistrationError) as raised:
        jaten_ops.op(schema.replace("x)", "x, int n)"))(lambda x, n: x + 1)
    assert len(set(re.findall(rf"{Path(__file__).name}:(\d+)", str(raised.value)))) == 2
    assert OPS.twice(torch.ones(2)).tolist() == [1, 1]


# what is wrong: the schema, the options, and what the error says
MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no namespace": ("wrong_a(Tensor x) -> Tensor", {}, "namespace"),
    "no schema": (f"{NAMESPACE}::wrong_b", {}, "schema"),
    "syntax": (f"{NAMESPACE}::wrong_c(Tensor x -> Tensor", {}, r"wrong_c\(Tensor x"),
    "an aliased result": (f"{NAMESPACE}::wrong_e(Tensor(a) x) -> Tensor(a)", {}, "wrong_e.*alias"),
    "an unknown argument": (f"{NAMESPACE}::wrong_f(Tensor x) -> Tensor", {"differentiable": ["y"]}, "wrong_f.*y"),
    "a number": (f"{NAMESPACE}::wrong_g(Tensor x, float y) -> Tensor", {"differentiable": ["y"]}, "wrong_g.*y"),
    "an unknown static": (f"{NAMESPACE}::wrong_h(Tensor x) -> Tensor", {"static": ["y"]}, "wrong_h.*y"),
    "an unknown tag": (f"{NAMESPACE}::wrong_i(Tensor x) -> Tensor", {"tags": ["no_such"]}, "wrong_i.*no_such"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_a_registration(name: str) -> None:
    schema, options, says = MISTAKES[name]
    with pytest.raises((JatenError, ValueError, RuntimeError), match=says):
        jaten_ops.op(schema, **options)(lambda x, y=None: x)
    assert not [n for n in registry.SPECS if "wrong" in n and schema.partition("(")[0] in n]


def test_unknown_user_op_is_told_how_to_be_made() -> None:
    with pytest.raises(UnknownOpError, match=r"jaten_ops\.op"):
        jaten_ops.fake(f"{NAMESPACE}::no_such_op")(lambda x: x)


def test_kernel_errors_reach_the_caller_and_the_next_call_works() -> None:
    def kernel(x, fail=False):
        if fail:
            raise ValueError("cannot do that")
        return x + 1

    _op("fragile(Tensor x, bool fail=False) -> Tensor")(kernel)
    with pytest.raises(ValueError, match="cannot do that"):
        OPS.fragile(torch.ones(2), True)
    assert OPS.fragile(torch.ones(2)).tolist() == [2, 2]


def _stepped(call: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    kept = x.detach().to("jax").requires_grad_()
    grads = kept.detach() * 0

    def step() -> None:
        (grad,) = torch.autograd.grad(call(kept), kept)
        grads.copy_(grad)

    compiled = jaten_ops.compile_step(step, kept, grads)
    compiled(), compiled()
    return grads


def _grad(call: Callable[..., torch.Tensor], x: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    x = x.detach().to(device).requires_grad_()
    call(x).backward()
    assert x.grad is not None
    return x.grad


def _compiled_grad(device: str, backend: str = "jaten", **options: Any) -> Callable[..., torch.Tensor]:
    return lambda call, x: _grad(torch.compile(call, backend=backend, **options), x, device)


# how a program asks for gradients: a registered one holds in each
WAYS_TO_GRADIENTS: dict[str, Callable[..., torch.Tensor]] = {
    "direct": _grad,
    "device": lambda call, x: _grad(call, x, "jax"),
    "compiled": _compiled_grad("cpu", fullgraph=True),
    "compiled, any size": _compiled_grad("cpu", dynamic=True),
    "compiled on the device": _compiled_grad("jax"),
    "another backend": _compiled_grad("cpu", "aot_eager"),
    "step": _stepped,
    "func.grad": lambda call, x: torch.func.grad(call)(x.detach()),
    "vmap": lambda call, x: torch.vmap(torch.func.grad(call))(x.detach()[None])[0],
    "checkpoint": lambda call, x: _grad(lambda y: torch.utils.checkpoint.checkpoint(call, y, use_reentrant=False), x),
}


@pytest.mark.parametrize("way", WAYS_TO_GRADIENTS)
def test_a_registered_gradient_holds_on_every_path(way: str) -> None:
    got = WAYS_TO_GRADIENTS[way](lambda x: (OPS.straight_through(x * 3) * 2).sum(), _leaf(3))
    assert got.tolist() == [6, 6, 6]


@pytest.mark.parametrize("name", ["relu", "mul.Tensor", "argmax", f"{NAMESPACE}::of_another"])
def test_a_gradient_that_would_not_be_asked_is_refused(name: str) -> None:
    if "::" in name:
        jaten_ops.kernel(f"{name}(Tensor x) -> Tensor")(lambda x: x)
    before = dict(registry.GRADIENTS)
    with pytest.raises(GradientRegistrationError, match=rf"{name}: .*(jaten_ops\.override|register_autograd)"):
        jaten_ops.gradient(name)(lambda grads, args, results: {})
    assert before == registry.GRADIENTS


@_op("ramp(int n, *, Device? device=None) -> Tensor")
def ramp(n):
    return jnp.arange(n, dtype=jnp.float32)


@_op("ramps(int n, *, Device? device=None) -> (Tensor, Tensor)")
def ramps(n):
    return jnp.zeros(n), jnp.arange(n, dtype=jnp.float32)


FACTORIES: dict[str, Callable[[Any], torch.Tensor]] = {
    "zeros": lambda device: torch.ops.jaten.zeros([3], device=device),
    "eye": lambda device: torch.ops.jaten.eye(3, device=device),
    "empty_strided": lambda device: torch.ops.jaten.empty_strided([2, 3], [1, 2], device=device),
    "randn": lambda device: torch.ops.jaten.randn([3], device=device),
    "a user's": lambda device: OPS.ramp(3, device=device),
    "a user's with two results": lambda device: OPS.ramps(3, device=device)[1],
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("device", ["jax", "jax:0", torch.device("jax")], ids=str)
def test_factories_called_directly_give_tensors_of_users(name: str, device: Any, tmp_path: Path) -> None:
    made = FACTORIES[name](device)
    assert type(made) is jaten_ops.Tensor
    parameter = torch.nn.Parameter(made)
    (copy.deepcopy(parameter) * 2 + parameter).sum().backward()
    assert parameter.grad is not None and parameter.grad.cpu().eq(1).all()
    torch.save(made, tmp_path / "made.pt")
    assert torch.load(tmp_path / "made.pt").shape == made.shape


NUMBERS: dict[str, Callable[..., Any]] = {
    "int": lambda x: (x > 0).sum(),
    "SymInt": lambda x: x.shape[0],
    "float": lambda x: x.sum(),
    "bool": lambda x: jnp.all(x > 0),
    "Scalar": lambda x: x.max(),
}
for _kind, _kernel in NUMBERS.items():
    _op(f"number_{_kind.lower()}(Tensor x) -> {_kind}")(lambda x, f=_kernel: jnp.asarray(f(x)))
    _op(f"eager_{_kind.lower()}(Tensor x) -> (Tensor, {_kind})", eager=True)(
        lambda x, f=_kernel: (x * 2, jnp.asarray(f(x)))
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_graphs_are_parted_at_numbers(kind: str, device: str, dynamic: bool) -> None:
    number, both = getattr(OPS, f"number_{kind.lower()}"), getattr(OPS, f"eager_{kind.lower()}")

    def program(x: torch.Tensor) -> tuple[Any, ...]:
        n = number(x)
        doubled, again = both(x + 1)
        return (x * n).cpu(), n, doubled.cpu(), again

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="jaten", dynamic=dynamic)
    for x in (torch.tensor([-1.0, 2.0, 3.0]), torch.tensor([4.0, 2.0, 3.0, 8.0])):
        got = compiled(x.to(device))
        assert_close(got, program(x), rtol=0, atol=0)
        assert [type(v) for v in got] == [type(v) for v in program(x)]
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data dependent operator"):
        torch.compile(number, backend="jaten", fullgraph=True)(x)


@_op("count(Tensor x) -> SymInt", eager=True)
def _count(x):
    return (x > 0).sum()


@_op("with_rows(Tensor x) -> (Tensor, int)")
def _with_rows(x):
    return x * 2, jnp.asarray(x.shape[0])


jaten_ops.fake("jaten_test_library::count")(lambda x: torch.library.get_ctx().new_dynamic_size())
jaten_ops.fake("jaten_test_library::with_rows")(lambda x: (torch.empty_like(x), x.shape[0]))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_graphs_have_the_numbers_of_fakes(device: str) -> None:
    def program(x: torch.Tensor) -> Any:
        doubled, rows = OPS.with_rows(x)
        return (doubled * rows).cpu(), x.new_ones(OPS.count(x)).cpu()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="jaten", fullgraph=True)
    for x in (torch.tensor([-1.0, 2.0, 3.0]), torch.tensor([4.0, 2.0, 3.0, 8.0])):
        assert_close(compiled(x.to(device)), (x * 2 * len(x), torch.ones(int((x > 0).sum()))))
