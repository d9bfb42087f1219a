"""Elementary functions: of float32 the nearest number to the exact one, of complex numbers; ATen's at the edges."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

jaten, aten = torch.ops.jaten, torch.ops.aten
OF_ONE = ("atan", "cos", "sin", "tan")
LOGARITHMS = ("log2", "log10")
EXPONENTIALS = ("exp2", "expm1", "cosh", "sinh", "atanh", "elu", "selu", "softplus", "log_sigmoid")
OF_EDGES = (*OF_ONE, *LOGARITHMS, *EXPONENTIALS, "acos", "asin", "log1p")
OF_TWO = ("atan2", "fmod.Tensor", "remainder.Tensor")
# beyond 2**30 the sine of all is XLA's own
FAR = (2.0**30, -3e9, 3.4e38)
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 89.0, 2.0**29, math.inf, -math.inf, math.nan)
SUBNORMAL = (1e-40, -1e-40, 1e-44)
OF_COMPLEX = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("abs", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sgn"),
    *("sqrt", "rsqrt", "reciprocal", "sigmoid", "silu"),
)
COMPLEX_EDGES = (0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan)


def _of(name: str, ops: object) -> object:
    packet, _, overload = name.partition(".")
    return getattr(getattr(ops, packet), overload or "default")


def _spread(n: int) -> torch.Tensor:
    """Numbers of both signs and of all sizes from 1e-30 to 1e8."""
    generator = torch.Generator().manual_seed(0)
    size = torch.rand(n, generator=generator, dtype=torch.float64) * 38 - 30
    return (10**size * (torch.randint(0, 2, (n,), generator=generator) * 2 - 1)).float()


def assert_identical(got: torch.Tensor, expected: torch.Tensor) -> None:
    """The same numbers, the same signs of zeros, NaN for NaN."""
    assert torch.equal(got.isnan(), expected.isnan())
    signed = [t.nan_to_num(0.0, math.inf, -math.inf).view(torch.int32) for t in (got, expected)]
    assert torch.equal(*signed), (got[signed[0] != signed[1]], expected[signed[0] != signed[1]])


def assert_nearest(got: torch.Tensor, nearest: torch.Tensor) -> None:
    """The nearest numbers but for a few in ten thousand, these one off; XLA flushes subnormal results."""
    normal = (nearest.abs() >= torch.finfo(torch.float32).tiny) | (nearest == 0)
    got, nearest = got[normal], nearest[normal]
    torch.testing.assert_close(got, nearest, rtol=1.2e-7, atol=0)
    assert (got != nearest).sum() <= 3e-4 * got.numel()


@pytest.mark.parametrize("name", OF_ONE)
def test_one_is_rounded_once(name: str) -> None:
    x = torch.cat([_spread(20000), torch.linspace(-100, 100, 20001), torch.linspace(-1.01, 1.01, 20001)])
    assert_nearest(_of(name, jaten)(x), _of(name, aten)(x.double()).float())


def _units_off(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, in units in the last place of the exact result."""
    nearest = exact.abs().float()
    unit = (nearest.nextafter(torch.tensor(math.inf)) - nearest).double()
    return float(((got.double() - exact).abs() / unit).max())


# the largest errors of single precision, in ATen's own of the same range; of XLA's own, log1p errs four times as far,
# expm1 and sinh ten times
ERRORS = {
    **dict.fromkeys(("sin", "cos", "asin", "acos", "exp2", "elu"), 2),
    **dict.fromkeys(("log1p", "expm1", "cosh", "sinh", "atanh", "softplus", "log_sigmoid", "mish"), 3),
}
# as far as results have all digits
MOST = {
    "asin": 1.0,
    "acos": 1.0,
    "atanh": 0.9999,
    "exp2": 126.0,
    "mish": 86.0,
    **dict.fromkeys(("expm1", "cosh", "sinh", "elu", "softplus", "log_sigmoid"), 87.0),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("most", [1e-3, 0.9, 100.0, 8191.0])
def test_errors_of_single_precision_are_near_those_of_aten(name: str, most: float) -> None:
    most = min(most, MOST.get(name, most))
    x = torch.linspace(-most, most, 300_001)
    if name == "log1p":
        x = torch.cat([x[x > -1], 10 ** torch.linspace(-30, 30, 100_001)])
    elif name in ("sin", "cos"):  # the numbers next to multiples of a quarter turn
        quarters = (torch.arange(-5215, 5216, dtype=torch.float64) * (math.pi / 2)).float()
        x = torch.cat([x, quarters[quarters.abs() <= most]])
    exact = _of(name, aten)(x.double())
    half = 0.5  # a unit, the error of the nearest number
    bound = ERRORS[name] * max(_units_off(_of(name, aten)(x), exact), half)
    assert _units_off(_of(name, jaten)(x), exact) <= bound


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_are_exact_for_powers(name: str) -> None:
    x = torch.cat([_spread(20000).abs(), torch.linspace(0.5, 2, 20001), torch.tensor(SUBNORMAL[::2])])
    assert _units_off(_of(name, jaten)(x), _of(name, aten)(x.double())) <= 0.7
    base = 2.0 if name == "log2" else 10.0
    whole = torch.arange(-126.0, 128) if base == 2 else torch.arange(-37.0, 39)
    assert torch.equal(_of(name, jaten)((base ** whole.double()).float()), whole)


@pytest.mark.parametrize("name", OF_TWO)
def test_two_are_rounded_once(name: str) -> None:
    x, ratios = _spread(20000), torch.linspace(-1000, 1000, 20000)
    x = torch.where(x.abs() > 1e-20, x, 1e-20)
    y = x.flip(0) if name == "atan2" else x * ratios
    assert_nearest(_of(name, jaten)(x, y), _of(name, aten)(x.double(), y.double()).float())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_EDGES)
@pytest.mark.parametrize("more", [(), FAR], ids=["near", "far"])
def test_edges_of_one(name: str, more: tuple[float, ...]) -> None:
    x = torch.tensor([*EDGES, *more])
    got, expected = _of(name, jaten)(x), _of(name, aten)(x)
    flushed = torch.finfo(torch.float32).tiny if name in EXPONENTIALS else 0.0
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-7, atol=flushed)
    assert torch.equal(got.signbit()[expected == 0], expected.signbit()[expected == 0])


@pytest.mark.parametrize("name", ["sin", "tan", "atan", "log1p", "expm1", "sinh", "atanh"])
def test_subnormal_numbers_stay(name: str) -> None:
    x = torch.tensor(SUBNORMAL)
    assert_identical(_of(name, jaten)(x), x)


@pytest.mark.parametrize("name", ["atan2", "fmod.Tensor"])
@pytest.mark.parametrize("more", [(), FAR, (1e-30,)], ids=["near", "far", "small"])
def test_edges_of_two(name: str, more: tuple[float, ...]) -> None:
    x = torch.tensor([*EDGES, *more])
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(x, x, indexing="ij"))
    exact = {"atan2": math.atan2, "fmod.Tensor": _fmod}[name]
    expected = [exact(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    got = _of(name, jaten)(a, b)
    flushed = torch.finfo(torch.float32).tiny
    torch.testing.assert_close(got, torch.tensor(expected), equal_nan=True, rtol=2e-7, atol=flushed)
    signs = torch.tensor([math.copysign(1, e) < 0 for e in expected])
    assert torch.equal(got.signbit()[got == 0], signs[got == 0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*EXPONENTIALS, *LOGARITHMS, "mish", "asin", "acos", "log1p", "sin", "cos"])
def test_second_derivatives(name: str) -> None:
    """Also at 0, where forms for both signs meet."""
    found = []
    for ops in (jaten, aten):
        x = torch.tensor([0.0, -0.0, 0.25, -0.25, 0.75, -0.75][2 * (name in LOGARITHMS) :: 1 + (name in LOGARITHMS)])
        x.requires_grad_()
        (slope,) = torch.autograd.grad(_of(name, ops)(x).sum(), x, create_graph=True)
        found.append((slope, *torch.autograd.grad(slope.sum(), x, allow_unused=True, materialize_grads=True)))
    torch.testing.assert_close(*found, rtol=2e-6, atol=1e-6)


def test_edges_of_powers() -> None:
    x = torch.tensor([*EDGES, *SUBNORMAL, 2.5, -2.5, 1e38, -1e38, 16777217.0, -3e9])
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(x, x, indexing="ij"))
    got, expected = jaten.pow.Tensor_Tensor(a, b), aten.pow.Tensor_Tensor(a, b)
    flushed = torch.finfo(torch.float32).tiny
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-7, atol=flushed)
    assert torch.equal(got.signbit()[got == 0], expected.signbit()[got == 0])


@pytest.mark.parametrize("exponent", [2.2, -1.5, 1 / 3, 7.0, 100.0])
def test_powers_err_at_most_twice_as_far_as_those_of_aten(exponent: float) -> None:
    most = min(10 ** (30 / abs(exponent)), 1e30)
    x = torch.cat([torch.linspace(most / 1e6, most, 100_001), torch.linspace(0.5, 1.5, 100_001)])
    y = torch.full_like(x, exponent)
    exact = aten.pow.Tensor_Tensor(x.double(), y.double())
    x, y, exact = (t[exact > 1e-37] for t in (x, y, exact))
    bound = 2 * max(_units_off(aten.pow.Tensor_Tensor(x, y), exact), 0.5)
    assert _units_off(jaten.pow.Tensor_Tensor(x, y), exact) <= bound


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["fmod.Tensor", "remainder.Tensor", "floor_divide"])
def test_whole_quotients(name: str) -> None:
    """Numbers whose product with the reciprocal is less than 1; XLA would compute it for broadcast divisors."""
    x = torch.tensor([math.pi, 49.0, 0.1, 3.0, 41.0])
    x = torch.cat([x, -x])
    for a, b in ((x[None], x[:, None]), (x, x[1]), (x * 7, x)):
        assert_identical(_of(name, jaten)(a, b), _of(name, aten)(a, b))


@pytest.mark.parametrize("more", [(), FAR], ids=["near", "far"])
def test_edges_of_floor_divide(more: tuple[float, ...]) -> None:
    edges = torch.tensor([*EDGES, -0.5, 3.0, 49.0, 0.1, -0.1, *more])
    x = torch.linspace(-1000, 1000, 30_001)
    pairs = [t.reshape(-1).contiguous() for t in torch.meshgrid(edges, edges, indexing="ij")]
    for a, b in (pairs, (x, x.flip(0) / 7), (x.round() * 0.3, torch.full_like(x, 0.3)), (x * 2000, x.cos())):
        keep = torch.ones_like(a, dtype=torch.bool) if more else (a.abs() < b.abs() * 2**21) | (b == 0) | ~a.isfinite()
        a, b = a[keep], b[keep]
        assert_identical(jaten.floor_divide(a, b), aten.floor_divide(a, b))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma_functions(name: str) -> None:
    x = torch.logspace(-1.7, 1.7, 200, dtype=torch.float64).float()
    exact = _of(name, aten)(x[:, None].double(), x.double())
    torch.testing.assert_close(_of(name, jaten)(x[:, None], x).double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ldexp(dtype: torch.dtype) -> None:
    """Exact where the power of two has no such number."""
    tiny, top = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    far = int(math.log2(top) - math.log2(tiny))
    x = torch.tensor([tiny, 1.5, -0.0, math.inf, math.nan], dtype=dtype)
    for exponent in (torch.tensor([far]), torch.tensor([3, -2, 2**40, -far, far], dtype=torch.int64)):
        got = jaten.ldexp(x, exponent)
        torch.testing.assert_close(got, aten.ldexp(x, exponent), rtol=0, atol=0, equal_nan=True)


def _fmod(a: float, b: float) -> float:
    return math.nan if math.isinf(a) or b == 0 else math.fmod(a, b)


def _spread_complex(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Complex numbers whose parts are of both signs and of all sizes from 1e-6 to 30."""
    generator = torch.Generator().manual_seed(0)
    size = 10 ** (torch.rand(2, n, generator=generator, dtype=torch.float64) * 7.5 - 6)
    sign = torch.randint(0, 2, (2, n), generator=generator) * 2 - 1
    return torch.complex(*(size * sign)).to(dtype)


def _grid(*parts: float) -> torch.Tensor:
    return torch.tensor([complex(*pair) for pair in itertools.product(parts, repeat=2)])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OF_COMPLEX)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.complex64, 1e-6), (torch.complex128, 1e-13)])
def test_complex_values(name: str, dtype: torch.dtype, tolerance: float) -> None:
    x = _spread_complex(20000, dtype)
    exact = _of(name, aten)(x.to(torch.complex128))
    error, allowed = (((_of(name, ops)(x) - exact).abs() / exact.abs()).max() for ops in (jaten, aten))
    assert error <= max(
        tolerance, 2 * allowed
    )  # ATen's own is larger where a rounded argument goes into an exponential


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OF_COMPLEX)
def test_complex_edges_in_vectors(name: str) -> None:
    x = _grid(*COMPLEX_EDGES, 30.0).repeat(100)
    assert_same_edges(_of(name, jaten)(x), _of(name, aten)(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["div.Tensor", "pow.Tensor_Tensor", "logaddexp"])
def test_complex_edges_of_two(name: str) -> None:
    x = _grid(*COMPLEX_EDGES)
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(x, x, indexing="ij"))
    assert_same_edges(_of(name, jaten)(a, b), _of(name, aten)(a, b))


def assert_same_edges(got: torch.Tensor, expected: torch.Tensor) -> None:
    """The same NaNs, infinities and signs of zeros in each part; near numbers elsewhere."""
    got, expected = (torch.view_as_real(t) if t.is_complex() else t for t in (got, expected))
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-5, atol=1e-6)
    zero = (got == 0) & (expected == 0)
    assert torch.equal(got.signbit()[zero], expected.signbit()[zero])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [n for n in OF_COMPLEX if n != "silu"])  # ATen has no gradient of that
def test_complex_gradients_on_the_axes(name: str) -> None:
    """If a part is 0 or large, the choice between formulas leaves no NaN in the gradient."""
    x = torch.tensor([0.5, -0.5, 0.5j, -0.5j, 2j, -2j, 25 + 1j, -25 - 1j, 1e-3 + 25j], dtype=torch.complex128)
    gradients = []
    for ops in (jaten, aten):
        leaf = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(torch.view_as_real(_of(name, ops)(leaf) + 0j).sum(), leaf)[0])
    torch.testing.assert_close(*gradients)


def test_large_divisors_are_not_flushed() -> None:
    large = torch.tensor([3e38 + 0j, 1e38 - 2e38j, 3e38j])
    torch.testing.assert_close(jaten.div.Tensor(large, large), torch.ones(3, dtype=torch.complex64))
