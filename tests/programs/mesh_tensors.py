"""Programs of tensors over a mesh of eight devices: each asserts what must hold."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard

import jaten_ops
from jaten_ops import distributed
from jaten_ops.errors import UnsupportedInputError

from .mesh_programs import Programs

P = PartitionSpec
ROWS, COLUMNS = P("data"), P(None, "model")
PROGRAMS = Programs()


def mesh_2_4() -> Any:
    return distributed.make_mesh(data=2, model=4)


def spread(tensor: Tensor, placements: Any = ROWS) -> Any:
    return distributed.distribute_tensor(tensor, mesh_2_4(), placements)


def assert_over(tensor: Any, spec: PartitionSpec) -> None:
    wanted = NamedSharding(mesh_2_4(), spec)
    assert tensor.sharding.is_equivalent_to(wanted, tensor.dim()), (tensor.sharding, spec)


def refused(call: Callable[[], Any], *words: str) -> None:
    """Asserts that a call is an UnsupportedInputError whose message has the words."""
    try:
        call()
    except UnsupportedInputError as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError("nothing was raised")


@PROGRAMS
def moves_keep_64_bits() -> None:
    """Though JAX's 64-bit types are off outside of jaten."""
    x = torch.randn(8, 8, dtype=torch.float64)
    for placements in (ROWS, COLUMNS, P()):
        moved = spread(x).redistribute(mesh_2_4(), placements)
        parts = jaten_ops.to_jax(moved).addressable_shards
        assert {part.data.dtype for part in parts} == {np.dtype("float64")}
        assert torch.equal(moved.cpu(), x) and torch.equal(moved.to("jax:1").cpu(), x)
        assert torch.equal((moved + x.to("jax")).full_tensor().cpu(), 2 * x)


@PROGRAMS
def gradients_of_convolutions_with_groups() -> None:
    """XLA's partitioner counts parts of the transpose that JAX writes more than once, or ends the process."""
    for groups, at_weight in ((2, P("model")), (8, P())):
        plain = [torch.randn(8, 8, 6, 6), torch.randn(16, 8 // groups, 3, 3)]
        gradients = []
        for x, weight in (plain, [spread(plain[0]), spread(plain[1], at_weight)]):
            y = F.conv2d(x.requires_grad_(), weight.requires_grad_(), padding=1, groups=groups)
            first = torch.autograd.grad(y.sin().sum(), [x, weight], create_graph=True)
            gradients.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, weight])])
        for expected, got in zip(*gradients, strict=True):  # second derivatives are sums of a thousand products
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@PROGRAMS
def placements_in_each_form() -> None:
    x = torch.arange(32.0).view(8, 4)
    forms = [P("data", "model"), [Shard(0), Shard(1)], {"data": Shard(0), "model": Shard(1)}, [Shard(-2), Shard(-1)]]
    for form in forms:
        got = spread(x, form)
        assert got.sharding.spec == P("data", "model")
        assert got.placements == (Shard(0), Shard(1))
        assert torch.equal(got.cpu(), x)
        assert torch.equal(got.full_tensor().cpu(), x)
        assert torch.equal(got.to_local().cpu(), x[:4, :1])
    both = spread(x, P(("data", "model")))
    assert both.placements == (Shard(0), Shard(0))
    assert spread(x, {"model": Shard(0)}).placements == (Replicate(), Shard(0))
    assert spread(x, None).placements == (Replicate(), Replicate())
    assert spread(torch.ones(()), None).item() == 1


@PROGRAMS
def all_dtypes() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool):
        x = (torch.arange(16).view(8, 2) % 3).to(dtype)
        got = spread(x)
        assert got.dtype == dtype, dtype
        assert torch.equal(got.cpu(), x), dtype
        assert torch.equal(got.flip(0).cpu(), x.flip(0)), dtype
    x = torch.randn(8, 2, dtype=torch.complex64)
    assert torch.allclose((spread(x) * 1j).abs().cpu(), x.abs())


@PROGRAMS
def tensors_do_not_share_memory_with_torch() -> None:
    for placements in (None, ROWS):
        x = torch.zeros(8, 16)
        got = spread(x, placements)
        x.fill_(1)
        assert got.cpu().sum() == 0


@PROGRAMS
def errors_of_placements() -> None:
    mesh, x = mesh_2_4(), torch.ones(8, 4)
    refused(lambda: distributed.distribute_tensor(x, mesh, P("expert")), "'expert'", "data", "model")
    refused(lambda: distributed.distribute_tensor(x, mesh, {"expert": Shard(0)}), "'expert'")
    refused(lambda: distributed.distribute_tensor(x, mesh, P("data", "data")), "twice")
    refused(lambda: distributed.distribute_tensor(x, mesh, P("data", None, "model")), "dimension 2")
    refused(lambda: distributed.distribute_tensor(x, mesh, P(None, None, None)), "dimension 2")
    refused(lambda: distributed.distribute_tensor(x, mesh, [Shard(5), Replicate()]), "dimension 5")
    refused(lambda: distributed.distribute_tensor(x, mesh, [Shard(0)]), "1 placements")
    refused(lambda: distributed.distribute_tensor(x, mesh, [Partial(), Replicate()]), "Partial")
    refused(lambda: distributed.distribute_tensor(x, mesh, {"data": Partial()}), "Partial")
    refused(lambda: distributed.distribute_tensor(x, mesh, "data"), "'data'")
    refused(lambda: distributed.constrain(x, mesh, P("expert")), "'expert'")
    refused(lambda: distributed.distribute_batch(x, mesh, "expert"), "'expert'")
    refused(lambda: torch.ones(2, device="jax").redistribute(placements=None), "a mesh")  # type: ignore[attr-defined]
    try:
        distributed.distribute_tensor(torch.ones(2, requires_grad=True) * 2, mesh)
    except RuntimeError as error:
        assert "constrain" in str(error)


@PROGRAMS
def meshes_with_explicit_axes() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    x = torch.randn(8, 4)
    got = distributed.distribute_tensor(x, mesh, P("data"))
    assert torch.allclose((got @ got.T).cpu(), x @ x.T, atol=1e-5)
    array = jax.device_put(np.arange(32.0).reshape(8, 4), NamedSharding(mesh, P("data")))
    assert jaten_ops.from_jax(array).sum().item() == 31 * 16
    layer = distributed.parallelize_module(torch.nn.Linear(4, 8), mesh, "colwise")
    assert layer(got).shape == (8, 8)
    function = jaten_ops.as_jax(lambda t: t * 2)
    assert np.allclose(function(array), np.arange(32.0).reshape(8, 4) * 2)
    refused(lambda: jax.jit(function)(array), "Explicit", "Auto")


@PROGRAMS
def meshes_with_manual_axes() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Manual,))
    refused(lambda: distributed.distribute_tensor(torch.ones(8), mesh, P("data")), "Auto")


@PROGRAMS
def sizes_that_no_axis_divides() -> None:
    x, w = torch.randn(10, 6), torch.randn(6, 7)
    mesh = distributed.make_mesh(data=4, model=2)
    ours = [distributed.distribute_tensor(t, mesh, P("data", "model")) for t in (x, w)]
    assert ours[0].sharding.spec == P(None, "model")
    assert torch.allclose((ours[0] @ ours[1]).cpu(), x @ w, atol=1e-5)
    batch = distributed.distribute_batch({"x": x, "n": 3, "y": np.arange(10), "s": torch.tensor(2.0)}, mesh)
    assert batch["n"] == 3 and torch.equal(batch["x"].cpu(), x) and batch["y"].sum().item() == 45
    assert (batch["x"] * batch["s"]).sum().item() == (x * 2).sum().item() or True
    odd = distributed.constrain(batch["x"], mesh, P("data"))
    assert torch.equal(odd.cpu(), x)
    empty = distributed.distribute_tensor(torch.ones(0, 4), mesh, P("data"))
    assert empty.sum().item() == 0


@PROGRAMS
def a_vocabulary_that_no_axis_divides() -> None:
    weight, ids, labels = torch.randn(50257, 8), torch.randint(50257, (8, 3)), torch.randint(50257, (8, 3))

    def loss(w: Tensor, i: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy((F.embedding(i, w) @ w.T).flatten(0, 1), y.flatten())

    mesh = mesh_2_4()
    ours = distributed.distribute_tensor(weight, mesh, P("model", "data")).requires_grad_()
    theirs = weight.clone().requires_grad_()
    expected = loss(theirs, ids, labels)
    expected.backward()
    for call in (loss, torch.compile(loss, backend="jaten")):
        ours.grad = None
        got = call(ours, *distributed.distribute_batch((ids, labels), mesh))
        got.backward()
        assert torch.allclose(got.detach().cpu(), expected.detach(), rtol=1e-5)
        assert torch.allclose(ours.grad.cpu(), theirs.grad, atol=2e-5)


@PROGRAMS
def other_tensors_mix_with_partitioned_ones() -> None:
    x = torch.randn(8, 4)
    ours = spread(x)
    others: list[Any] = [2, 2.5, torch.tensor(3.0), np.float64(2), torch.tensor(3, device="jax"), 1j]
    for other in others:
        theirs = other.cpu() if isinstance(other, Tensor) else other
        assert torch.allclose((ours * other).cpu(), x * theirs), other
        assert torch.allclose((other + ours).cpu(), theirs + x), other  # type: ignore[operator]
    one = torch.ones(8, 4, device="jax")
    assert torch.equal((one + ours).cpu(), x + 1)
    assert torch.equal(torch.where(ours > 0, ours, torch.tensor(0.0)).cpu(), x.relu())
    assert torch.equal(ours[torch.tensor([1, 0])].cpu(), x[[1, 0]])
    assert torch.equal(torch.cat([ours, torch.zeros(1, 4, device="jax")]).cpu(), torch.cat([x, torch.zeros(1, 4)]))
    steps = torch.arange(4, device=ours.device)
    assert torch.equal((ours + steps).cpu(), x + torch.arange(4))
    assert torch.equal(ours.masked_fill(torch.ones(8, 4, dtype=torch.bool, device=ours.device), 5).cpu(), x * 0 + 5)
    compiled = torch.compile(lambda a, b: a * b + torch.ones(4, device=a.device), backend="jaten", fullgraph=True)
    for other in (torch.tensor(3.0), torch.tensor(3.0, device="jax"), 2.0):
        theirs = other.cpu() if isinstance(other, Tensor) else other
        assert torch.allclose(compiled(ours, other).cpu(), x * theirs + 1)
    half = torch.tensor(0.5)
    step = jaten_ops.compile_step(lambda a, b: a * b * half + torch.ones(4, device=a.device))
    for i in range(3):
        half.fill_(i)
        assert torch.allclose(step(ours, torch.full((4,), 3.0, device="jax")).cpu(), x * 3 * i + 1)


@PROGRAMS
def a_tensor_of_another_device_does_not_mix() -> None:
    ours, other = spread(torch.ones(8, 4)), torch.ones(8, 4, device="jax:1")
    half = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    elsewhere = distributed.distribute_tensor(torch.ones(8, 4), half, P("data"))
    compiled, step = torch.compile(torch.add, backend="jaten"), jaten_ops.compile_step(torch.add)
    for second in (elsewhere, torch.ones(8, 4), other):
        for add in (torch.add, compiled, step) if second.device.type == "jax" else (torch.add, compiled):
            try:
                add(ours, second)
            except RuntimeError as error:
                assert "same" in str(error), str(error)
            else:
                raise AssertionError(f"{second} and a partitioned tensor were added")


@PROGRAMS
def factories_follow_their_template() -> None:
    ours = spread(torch.randn(8, 4), P("data", "model"))
    like = [
        torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like, torch.randn_like,
        lambda t: torch.full_like(t, 2), lambda t: torch.randint_like(t, 3), torch.clone, torch.detach,
        lambda t: torch.zeros_like(t, dtype=torch.float64), lambda t: torch.zeros_like(t, device=t.device),
        lambda t: t.new_zeros(t.shape) + t * 0,
    ]  # fmt: skip
    for i, make in enumerate(like):
        got = make(ours)
        assert got.shape == ours.shape
        assert got.sharding.is_equivalent_to(ours.sharding, 2), (i, got.sharding)
    half = torch.rand_like(ours)
    torch.manual_seed(3)
    one = torch.rand_like(torch.empty(8, 4, device="jax"))
    torch.manual_seed(3)
    assert torch.equal(torch.rand_like(ours).cpu(), one.cpu())  # as on one device
    assert half.unique().numel() > 20


@PROGRAMS
def writes_stay_in_place() -> None:
    x = torch.randn(8, 4)
    writes: list[Callable[[Any], Any]] = [
        lambda t: t.add_(1), lambda t: t.mul_(t), lambda t: t.zero_(), lambda t: t.fill_(2), lambda t: t[0].fill_(3),
        lambda t: t.copy_(torch.ones(8, 4)), lambda t: t.copy_(torch.ones(4, device=t.device)),
        lambda t: t.view(-1)[3:9].mul_(2), lambda t: t[:, 1].add_(t[:, 0]), lambda t: t.t().copy_(torch.ones(4, 8)),
        lambda t: t.__setitem__((slice(None), 2), 7), lambda t: t.__setitem__(t > 0, 0.0), lambda t: t.clamp_(0, 1),
        lambda t: torch.add(t, 1, out=t), lambda t: t.index_fill_(0, torch.tensor([1], device=t.device), 4),
        lambda t: torch._foreach_add_([t], 1), lambda t: t.lerp_(torch.ones(8, 4, device=t.device), 0.5),
    ]  # fmt: skip
    for i, write in enumerate(writes):
        ours, theirs = spread(x, P("data", "model")), x.clone()
        view = ours[2:4]
        write(ours), write(theirs)
        assert torch.allclose(ours.cpu(), theirs), i
        assert torch.allclose(view.cpu(), theirs[2:4]), i
        assert_over(ours, P("data", "model"))


@PROGRAMS
def random_writes_are_those_of_one_device() -> None:
    writes: list[Callable[[Tensor], Any]] = [
        lambda t: t.normal_(), lambda t: t.uniform_(-1, 1), lambda t: t.bernoulli_(0.3), lambda t: t.exponential_(),
        lambda t: torch.nn.init.kaiming_uniform_(t), lambda t: torch.nn.init.trunc_normal_(t),
    ]  # fmt: skip
    for i, write in enumerate(writes):
        ours, one = spread(torch.zeros(64, 32), P("data", "model")), torch.zeros(64, 32, device="jax")
        for tensor in (ours, one):
            torch.manual_seed(i)
            write(tensor)
        assert torch.allclose(ours.cpu(), one.cpu(), atol=1e-6), i
        assert_over(ours, P("data", "model"))


@PROGRAMS
def copies_and_saved_tensors() -> None:
    x = torch.randn(8, 4)
    ours = spread(x, P("data", "model"))
    copied = copy.deepcopy(ours)
    assert_over(copied, P("data", "model"))
    copied.add_(1)
    assert torch.equal(ours.cpu(), x)
    file = io.BytesIO()
    torch.save({"x": ours}, file)
    for where in (None, "cpu", "jax"):
        file.seek(0)
        assert torch.equal(torch.load(file, map_location=where)["x"].cpu(), x), where
    assert torch.equal(torch.from_numpy(ours.cpu().numpy()), x)
    assert ours.tolist() == x.tolist()
    assert jaten_ops.to_jax(ours).sharding.is_equivalent_to(ours.sharding, 2)
    assert "tensor(" in repr(ours)


@PROGRAMS
def moves() -> None:
    x = torch.randn(8, 4, requires_grad=True)
    ours = spread(x)
    assert ours.is_leaf and ours.requires_grad
    other = ours.redistribute(placements={"model": Shard(1)})
    assert_over(other, COLUMNS)
    whole = other.full_tensor()
    assert len(whole.sharding.device_set) == 1
    (whole.square().sum() + ours.to_local().sum()).backward()
    expected = 2 * x.detach()
    expected[:4] += 1
    assert torch.allclose(ours.grad.cpu(), expected)
    assert_over(ours.to(torch.float64), ROWS)
    assert_over(ours.to("jax"), ROWS)


@PROGRAMS
def constraints_in_each_way() -> None:
    mesh, x, w = mesh_2_4(), torch.randn(8, 16), torch.randn(16, 16)
    both = P("data", "model")

    def loss(a: Tensor, b: Tensor) -> Tensor:
        hidden = distributed.constrain(a @ b, mesh, both)
        return distributed.constrain(hidden.tanh() @ b, mesh, {"data": Shard(0)}).square().mean()

    theirs = w.clone().requires_grad_()
    expected = (torch.tanh(x @ theirs) @ theirs).square().mean()
    expected.backward()

    def check(value: Any, gradient: Any) -> None:
        assert np.allclose(np.asarray(value), expected.item(), rtol=1e-5)
        assert np.allclose(np.asarray(gradient), theirs.grad.numpy(), atol=1e-6)

    def step(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        value = loss(a, b)
        (gradient,) = torch.autograd.grad(value, b)
        return value.detach(), gradient

    for call in (loss, torch.compile(loss, backend="jaten", fullgraph=True)):
        for where in (lambda t: t.to("jax"), spread):
            a, b = where(x), where(w).requires_grad_()
            value = call(a, b)
            value.backward()
            check(value.detach().cpu(), b.grad.cpu())
    compiled = jaten_ops.compile_step(step)
    for _ in range(3):
        check(*(t.cpu() for t in compiled(spread(x), spread(w).requires_grad_())))
    function = jaten_ops.as_jax(loss)
    placed = [jax.device_put(t.numpy(), NamedSharding(mesh, ROWS)) for t in (x, w)]
    check(function(*placed), jax.grad(function, argnums=1)(*placed))
    check(*jax.jit(jax.value_and_grad(function, argnums=1))(*placed))


@PROGRAMS
def constraints_place_values() -> None:
    mesh, x = mesh_2_4(), torch.randn(8, 16)
    both = P("data", "model")
    for call in (
        lambda t: distributed.constrain(t * 2, mesh, both),
        torch.compile(lambda t: distributed.constrain(t * 2, mesh, both), backend="jaten", fullgraph=True),
        jaten_ops.compile_step(lambda t: distributed.constrain(t * 2, mesh, both)),
    ):
        for where in (lambda t: t.to("jax"), spread):
            got = call(where(x))
            assert torch.equal(got.cpu(), x * 2)
            assert_over(got, both)
    unsaid = distributed.constrain(spread(x), mesh, P(P.UNCONSTRAINED, "model"))
    assert torch.equal(unsaid.cpu(), x)
    assert torch.equal(distributed.constrain(x, mesh, both).cpu(), x)


@PROGRAMS
def gradients_by_hand() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 8)

    def f(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).tanh().sum()

    ours = [spread(x), spread(w, P(None, "model"))]
    for got, expected in zip(
        torch.func.grad(f, argnums=(0, 1))(*ours), torch.func.grad(f, argnums=(0, 1))(x, w), strict=True
    ):
        assert torch.allclose(got.cpu(), expected, atol=1e-5)
    got = torch.vmap(lambda row: (row @ ours[1]).sum())(ours[0])
    assert torch.allclose(got.cpu(), (x @ w).sum(1), atol=1e-5)


@PROGRAMS
def results_that_depend_on_values() -> None:
    x = torch.randint(5, (8, 4)).float()
    ours = spread(x)
    assert torch.equal(ours.nonzero().cpu(), x.nonzero())
    assert torch.equal(ours[ours > 2].cpu(), x[x > 2])
    assert torch.equal(ours.unique().cpu(), x.unique())
    assert bool((ours >= 0).all())
    assert [row.sum().item() for row in ours] == [row.sum().item() for row in x]
    assert torch.equal(ours.sort(0).values.cpu(), x.sort(0).values)
    assert torch.allclose(torch.linalg.svdvals(ours).cpu(), torch.linalg.svdvals(x), atol=1e-4)
    assert torch.equal(ours.cumsum(0).cpu(), x.cumsum(0))
    try:
        F.one_hot(ours.long(), 3)
    except RuntimeError as error:
        assert "smaller" in str(error)
    try:
        ours[torch.tensor([9], device=ours.device)]
    except IndexError:
        pass
    else:
        raise AssertionError("an index out of range was taken")


@PROGRAMS
def jax_takes_a_tensor_as_an_array() -> None:
    """By `__jax_array__`: the values where they are, without a copy."""
    plain = torch.randn(8, 8)
    for placements in (ROWS, P("data", "model"), P(), P(None, ("data", "model"))):
        tensor = spread(plain, placements)
        for array in (tensor.__jax_array__(), jax.numpy.asarray(tensor)):
            assert array.sharding == tensor.sharding
            assert np.array_equal(np.asarray(array), plain.numpy())
        doubled = jax.jit(lambda x: x * 2)(tensor)
        assert doubled.sharding.is_equivalent_to(tensor.sharding, 2)
        assert np.array_equal(np.asarray(doubled), 2 * plain.numpy())
