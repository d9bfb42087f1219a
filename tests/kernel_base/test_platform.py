"""One form of a computation for a CPU, one for other platforms: each in its programs alone, and both ATen's."""

from __future__ import annotations

import collections
import dataclasses
import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import expecttest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaten_ops.cpu import exponentials
from jaten_ops.kernel_base import platform
from jaten_ops.kernel_base.platform import by_platform
from jaten_ops.registry import KERNELS
from jaten_ops.xla.platform_branches import cpu_branch
from jaten_ops.xla.x64 import Enabled

from ..harness.other_platforms import has_program, leaks, operations
from ..harness.recorded import REACHING, recorded_calls
from ..harness.replay import OP_INFOS, supported

PLATFORMS = ("cuda", "tpu")

_R = torch.Generator().manual_seed(0)


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_R, dtype=dtype)


def _edges(*shape: int) -> torch.Tensor:
    """Ties, NaNs and infinities, some rows of which are all the same."""
    values = torch.tensor([0.0, 1.0, 1.0, -2.0, math.nan, math.inf, -math.inf, -math.inf, -math.inf])
    found = values[torch.randint(9, shape, generator=_R)]
    found[0] = -math.inf
    return found


_IMAGE, _PLANES = _randn(2, 4, 8, 8), torch.ops.aten.max_pool2d_with_indices(_randn(2, 4, 8, 8), (3, 3), (2, 2), (1, 1))
_CONVOLUTION = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
_POOL = ((3, 3), (2, 2), (1, 1))

# overload, arguments, keyword arguments
ROWS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "rsqrt": ("rsqrt", (_randn(64).abs(),), {}),
    "var": ("var.correction", (_randn(8, 64), (1,)), {"correction": 1}),
    "std": ("std.correction", (_randn(8, 64), (1,)), {"correction": 0}),
    "prod": ("prod.dim_int", (1 + 0.1 * _randn(8, 512), 1), {}),
    "argmax": ("argmax", (_randn(8, 64), 1), {}),
    "max.dim": ("max.dim", (_randn(8, 64), 1), {}),
    "amax": ("amax", (_randn(8, 64), (1,)), {}),
    "sum": ("sum.dim_IntList", (_randn(8, 64), (1,)), {}),
    "cumsum": ("cumsum", (_randn(8, 64), 1), {}),
    "sin": ("sin", (_randn(64),), {}),
    "atan2": ("atan2", (_randn(64), _randn(64)), {}),
    "fmod": ("fmod.Tensor", (_randn(64), _randn(64)), {}),
    "softmax": ("_softmax", (_randn(8, 64), 1, False), {}),
    "layer_norm": ("native_layer_norm", (_randn(8, 64), (64,), _randn(64), _randn(64), 1e-5), {}),
    "mm of bfloat16": ("mm", (_randn(8, 64).bfloat16(), _randn(64, 8).bfloat16()), {}),
    "scatter of one index": ("index_copy", (_randn(8, 64), 0, torch.tensor([3]), _randn(1, 64)), {}),
    "scatter of several": ("index_copy", (_randn(8, 64), 0, torch.tensor([3, 5]), _randn(2, 64)), {}),
    "slice_scatter": ("slice_scatter", (_randn(8, 4), _randn(7, 4), 0, 1, 8), {}),
    "max_pool": ("max_pool2d_with_indices", (_IMAGE, *_POOL), {}),
    "max_pool_backward": (
        "max_pool2d_with_indices_backward",
        (_randn(2, 4, 4, 4), _IMAGE, *_POOL, (1, 1), False, _PLANES[1]),
        {},
    ),
    "avg_pool": ("avg_pool2d", (_IMAGE, *_POOL), {}),
    "avg_pool_backward": ("avg_pool2d_backward", (_randn(2, 4, 4, 4), _IMAGE, *_POOL, False, True, None), {}),
    "adaptive_avg_pool": ("_adaptive_avg_pool2d", (_IMAGE, (2, 2)), {}),
    "convolution": ("convolution", (_IMAGE, _randn(6, 4, 3, 3), _randn(6), *_CONVOLUTION), {}),
    "convolution in groups": ("convolution", (_IMAGE, _randn(8, 1, 3, 3), None, *_CONVOLUTION[:-1], 4), {}),
    "convolution by all of an image": (
        "convolution",
        (_IMAGE, _randn(6, 4, 8, 8), None, (1, 1), (0, 0), *_CONVOLUTION[2:]),
        {},
    ),
    "convolution_backward": (
        "convolution_backward",
        (_randn(2, 6, 8, 8), _IMAGE, _randn(6, 4, 3, 3), (6,), *_CONVOLUTION, (True, True, True)),
        {},
    ),
}

# beyond those: where XLA's own reductions would choose another element, or other windows
EDGES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "argmax": ("argmax", (_edges(9, 40), 1), {}),
    "argmin of everything": ("argmin", (_edges(9, 40),), {}),
    "argmax of integers": ("argmax", (torch.randint(3, (5, 9), generator=_R), 0, True), {}),
    "max.dim": ("max.dim", (_edges(9, 40), 1, True), {}),
    "min.dim of bool": ("min.dim", (_randn(5, 9) > 0, 0), {}),
    "max_pool": ("max_pool2d_with_indices", (_edges(3, 2, 9, 10), (3, 2), (2, 2), (1, 1)), {}),
    "max_pool, dilation": ("max_pool2d_with_indices", (_edges(2, 9, 10), (2, 3), (1, 2), (1, 0), (2, 3)), {}),
    "max_pool, ceil_mode": ("max_pool2d_with_indices", (_randn(1, 2, 8, 10), (3, 4), (2, 3), (0, 1), (1, 1), True), {}),
    "max_pool of volumes": ("max_pool3d_with_indices", (_randn(2, 5, 6, 7), (2, 3, 2), (1, 2, 2), (1, 1, 0)), {}),
    "max_pool, longer steps than windows": ("max_pool2d_with_indices", (_randn(1, 2, 9, 9), (2, 2), (3, 4)), {}),
    "adaptive_max_pool": ("adaptive_max_pool2d", (_edges(2, 3, 7, 8), (3, 4)), {}),
    "avg_pool, ceil_mode": ("avg_pool2d", (_randn(1, 2, 8, 10), (3, 4), (2, 3), (1, 2), True, False), {}),
    "avg_pool_backward, ceil_mode": (
        "avg_pool2d_backward",
        (_randn(1, 2, 5, 4), _randn(1, 2, 8, 10), (3, 4), (2, 3), (1, 2), True, False, None),
        {},
    ),
    "avg_pool_backward, longer steps than windows": (
        "avg_pool2d_backward",
        (_randn(1, 2, 3, 2), _randn(1, 2, 9, 9), (2, 2), (3, 4), (0, 0), False, True, 3),
        {},
    ),
    "adaptive_avg_pool": ("_adaptive_avg_pool2d", (_randn(2, 3, 7, 8), (3, 5)), {}),
    "scatter_add of one index": ("index_add", (_randn(5, 4), 1, torch.tensor([2]), _randn(5, 1)), {"alpha": 2}),
    "index_put of one of bool": (
        "index_put",
        (_randn(5, 4) > 0, (torch.tensor([2]),), torch.ones(1, 4, dtype=torch.bool), True),
        {},
    ),
    "var of float64": ("var.correction", (_randn(8, 64, dtype=torch.float64), None), {"correction": 2}),
    "std of complex64": ("std.correction", (_randn(4, 9, dtype=torch.complex64), (0,)), {}),
    "transposed convolution": (
        "convolution",
        (_randn(1, 4, 5, 5), _randn(4, 3, 3, 3), _randn(6), (2, 2), (1, 1), (1, 1), True, (1, 1), 2),
        {},
    ),
    "convolution of bfloat16": (
        "convolution",
        (_randn(1, 2, 5, 5).bfloat16(), _randn(3, 2, 3, 3).bfloat16(), _randn(3).bfloat16(), *_CONVOLUTION),
        {},
    ),
}


def _array(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_array, value))
    return jnp.asarray(value.float().numpy(), "bfloat16") if isinstance(value, torch.Tensor) and (
        value.dtype == torch.bfloat16
    ) else jnp.asarray(value.numpy()) if isinstance(value, torch.Tensor) else value  # fmt: skip


WAYS: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "eager": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "vmap": lambda f, x: jax.vmap(f)(x),
    "jit of vmap": lambda f, x: jax.jit(jax.vmap(f))(x),
    "grad": lambda f, x: jax.grad(lambda x: f(x).sum())(x),
    "jit of grad of grad": lambda f, x: jax.jit(jax.grad(lambda x: jax.grad(lambda x: f(x).sum())(x).sum()))(x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,))[1],
    "vjp of vmap": lambda f, x: jax.vjp(jax.vmap(f), x)[1](x)[0],
    "scan": lambda f, x: lax.scan(lambda c, row: (f(c) + row, f(row)), x[0], x)[1],
    "while": lambda f, x: lax.fori_loop(0, 3, lambda _, x: f(x), x),
    "cond": lambda f, x: lax.cond(x.sum() > 0, f, lambda x: -f(x), x),
    "checkpoint": lambda f, x: jax.grad(lambda x: jax.checkpoint(f)(x).sum())(x),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
}


class TestByPlatform:
    """Under each of JAX's transformations it is the form of the platform at hand, which is a CPU's here."""

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("way", WAYS)
    def test_under_transformations(self, way: str) -> None:
        x = jnp.arange(1, 7, dtype="float32").reshape(2, 3) / 7

        def both(x: Any) -> Any:
            return by_platform(x, cpu=lambda x: x**3, default=lambda x: jnp.exp(x) * 100)

        found, expected = (WAYS[way](f, x) for f in (both, lambda x: x**3))
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    @pytest.mark.parametrize("of", [lambda f: f, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
    def test_the_other_form_leaves_nothing(self, of: Any) -> None:
        both = of(lambda x: by_platform(x, cpu=jnp.tanh, default=jnp.log))
        text = {
            on: jax.jit(both).trace(jnp.ones((2, 3))).lower(lowering_platforms=(on,)).as_text()
            for on in ("cpu", "cuda")
        }
        assert "tanh" in text["cpu"] and not any(word in text["cpu"] for word in ("stablehlo.log", "stablehlo.divide"))
        assert "tanh" not in text["cuda"] and any(
            word in text["cuda"] for word in ("stablehlo.log", "stablehlo.divide")
        )

    def test_a_cpus_program_as_if_it_had_one_form(self) -> None:
        one, both = (
            jax.jit(f).lower(jnp.ones(9)).compile().as_text().partition("ENTRY")[2].count(" = ")
            for f in (lambda x: jnp.tanh(x) + x, lambda x: by_platform(x, cpu=jnp.tanh, default=jnp.log) + x)
        )
        assert one == both


class TestCpuBranch:
    def test_it_is_found_in_a_traced_program(self) -> None:
        program = jax.make_jaxpr(lambda x: by_platform(x, cpu=jnp.tanh, default=jnp.log))(1.0)
        (branch,) = [b for e in program.eqns if (b := cpu_branch(e)) is not None]
        assert [e.primitive.name for e in branch.eqns] == ["tanh"]

    def test_a_branch_on_a_value_is_none(self) -> None:
        program = jax.make_jaxpr(lambda x: lax.cond(x > 0, jnp.tanh, jnp.log, x))(1.0)
        assert [cpu_branch(e) for e in program.eqns] == [None] * len(program.eqns)


def _program(row: tuple[str, tuple[Any, ...], dict[str, Any]]) -> tuple[Callable[..., Any], list[Any]]:
    """A kernel as a function of the arrays among its arguments, and those."""
    overload, args, kwargs = row
    leaves, tree = jax.tree.flatten((tuple(map(_array, args)), kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def run(*arrays: Any) -> Any:
        given = dict(zip(at, arrays, strict=True))
        args, kwargs = jax.tree.unflatten(tree, [given.get(i, leaf) for i, leaf in enumerate(leaves)])
        return KERNELS[overload].fn(*args, **kwargs)

    return run, [leaves[i] for i in at]


# What is in programs for other platforms


def _summary(name: str, on: str) -> str:
    """The operations of a program with their numbers, those of float64 apart."""
    run, arrays = _program(ROWS[name])
    program = jax.jit(run).trace(*arrays).lower(lowering_platforms=(on,)).compiler_ir("stablehlo")
    counted: collections.Counter[str] = collections.Counter()
    for operation in operations(program.body):
        kind = operation.operation.name.rpartition(".")[2]
        if kind not in ("call", "constant", "func", "return"):
            counted[kind + ".f64" * any("f64" in str(r.type) for r in operation.results)] += 1
    return " ".join(kind if n == 1 else f"{kind}*{n}" for kind, n in sorted(counted.items()))


class TestProgramsForOtherPlatforms(expecttest.TestCase):
    maxDiff = None

    def test_they_have_nothing_of_a_cpu(self) -> None:
        lines = []
        with Enabled():
            for name in ROWS:
                found = {on: _summary(name, on) for on in PLATFORMS}
                shown = set(found.values())
                lines += (
                    [f"{name}: {shown.pop()}"] if len(shown) == 1 else [f"{name}, {on}: {t}" for on, t in found.items()]
                )
        # a later JAX has an operation for it on CUDA
        own = "cumsum, cuda: add broadcast_in_dim scan\ncumsum, tpu: add broadcast_in_dim reduce_window"
        self.assertExpectedInline(
            "\n".join(lines).replace(own, "cumsum: add broadcast_in_dim reduce_window"),
            """\
rsqrt: rsqrt
var: add*2 broadcast_in_dim*5 divide*2 maximum reduce*2 reshape square subtract*2
std: add*2 broadcast_in_dim*7 compare divide*2 maximum reduce*2 reshape select*2 sqrt square subtract*2
prod: multiply reduce
argmax: and broadcast_in_dim compare*4 convert iota or*2 reduce reshape select*2
max.dim: and broadcast_in_dim*2 compare*4 convert iota maximum or*2 reduce*2 reshape*2 select*2
amax: broadcast_in_dim maximum reduce reshape
sum: add reduce
cumsum: add broadcast_in_dim reduce_window
sin: sine
atan2: atan2
fmod: remainder
softmax: add broadcast_in_dim*4 divide exponential maximum reduce*2 subtract
layer_norm: add*4 broadcast_in_dim*12 divide*2 multiply*3 reduce*2 rsqrt subtract*2
mm of bfloat16: convert dot_general
scatter of one index: broadcast_in_dim scatter
scatter of several: broadcast_in_dim scatter
slice_scatter: dynamic_update_slice
max_pool: add and broadcast_in_dim*4 compare*6 convert iota*2 multiply*2 or*2 reduce_window reshape*4 select*3 subtract
max_pool_backward: add broadcast_in_dim*2 convert reshape*3 scatter
avg_pool: add broadcast_in_dim*3 divide reduce_window
avg_pool_backward: add broadcast_in_dim*3 divide pad reduce_window
adaptive_avg_pool: add broadcast_in_dim*3 divide reduce_window
convolution: add broadcast_in_dim*2 convolution reshape
convolution in groups: convolution
convolution by all of an image: convolution
convolution_backward: add convolution*2 reduce reverse""",
        )


# jiterator's run on CUDA only, sparse tensors have no counterpart in JAX, and the last has memory around its inputs
_WITHOUT_PROGRAMS = ("jiterator", "sparse.", "as_strided.partial_views")


def _subjects() -> list[Any]:
    """Each OpInfo in its first dtype and in bfloat16; every twelfth is in the default run, in the former."""
    table = []
    for i, name in enumerate(n for n in OP_INFOS if not n.startswith(_WITHOUT_PROGRAMS)):
        dtypes = [d for d in REACHING if supported(name, d)][:1]
        dtypes += [torch.bfloat16] if supported(name, torch.bfloat16) else []
        for rank, dtype in enumerate(dtypes):
            marks = [pytest.mark.exhaustive] if rank or i % 12 else []
            table.append(pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks))
    return table


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "dtype"), _subjects())
def test_kernels_have_nothing_of_a_cpu(name: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    most = 20 if request.config.option.markexpr == "exhaustive" else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = [call for call in recorded_calls(name, dtype, most, backward=True) if has_program(call)]
    assert leaks(calls, "cuda") == []


# kernels of `neg` with something of a CPU, and what is said of it
LEAKING: dict[str, tuple[Callable[[jax.Array], jax.Array], str]] = {
    "a function of jaten_ops/cpu": (lambda self: exponentials._exp2(self), "_exp2 (exponentials.py:"),
    "a saved value of the form for a CPU": (
        lambda self: jax.vjp(lambda x: by_platform(x, cpu=jnp.tanh, default=lambda x: -x), self)[1](self)[0],
        "stablehlo",
    ),
}


@pytest.mark.parametrize("name", LEAKING)
def test_leaks_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, words = LEAKING[name]
    (call,) = recorded_calls("neg", torch.float32, 1)
    assert leaks([call], "cuda") == []
    monkeypatch.setitem(KERNELS, "neg", dataclasses.replace(KERNELS["neg"], fn=fn))
    assert any(words in found for found in leaks([call], "cuda"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("sum", "softmax", "scatter of several")])
def test_a_cpus_program_is_another(name: str) -> None:
    with Enabled():
        assert _summary(name, "cpu") != _summary(name, "cuda")


# The values of the form for other platforms, which any platform can compute


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*ROWS, *(f"{name} (edges)" for name in EDGES)])
def test_the_form_for_other_platforms_gives_atens_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = EDGES[name.removesuffix(" (edges)")] if name.endswith(" (edges)") else ROWS[name]
    elsewhere = SimpleNamespace(platform_dependent=lambda *operands, cpu, default: default(*operands))
    monkeypatch.setattr(platform, "lax", elsewhere)
    overload, args, kwargs = row
    packet, _, which = overload.partition(".")
    expected = getattr(getattr(torch.ops.aten, packet), which or "default")(*args, **kwargs)
    with Enabled():
        run, arrays = _program(row)
        found = jax.jit(run)(*arrays)
        assert jax.tree.leaves(found)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        same = torch.from_numpy(np.asarray(got).astype(np.float32 if want.dtype == torch.bfloat16 else got.dtype))
        torch.testing.assert_close(same.to(want.dtype), want, equal_nan=True)
        assert same.dtype == want.dtype or want.dtype == torch.bfloat16
