"""Out of Dynamo's sight: constants on the device, and methods of tensors, which it calls between its graphs."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

import jaten_ops
from jaten_ops import tracing

DEVICES = ("cpu", "jax")

CONSTANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floats": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "ints": lambda x: torch.tensor([1, 2], device=x.device),
    "one element": lambda x: torch.tensor([3.0], device=x.device),
    "none": lambda x: torch.tensor([], dtype=x.dtype, device=x.device),
    "a number": lambda x: torch.tensor(2.0, device=x.device),
    "moved": lambda x: torch.tensor([1.0, 2.0]).to(x.device),
    "a moved number": lambda x: torch.tensor(2.0).to(x.device),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "of lists": lambda x: torch.tensor([[True, False], [False, True]], device=x.device),
}


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()  # all rows are one code object for Dynamo, which gives up after a few


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("device", DEVICES)
def test_constants(device: str, name: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        constant = CONSTANTS[name](x)
        return torch.cat([constant.reshape(-1), x]), constant.sum() * x

    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    given = x.to(device).requires_grad_()
    expected = program(x.requires_grad_())
    results = torch.compile(program, backend="jaten", fullgraph=True)(given)
    for result, truth in zip(results, expected, strict=True):
        assert result.device.type == device
        torch.testing.assert_close(result.cpu(), truth)
    torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    torch.autograd.backward(expected, [torch.ones_like(r) for r in expected])
    torch.testing.assert_close(given.grad.cpu(), x.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_a_constant_that_is_written_to(device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        total = torch.tensor(0.0, device=x.device)
        for row in x:
            total += row.sum()
        return total

    x = torch.arange(6.0).reshape(3, 2)
    compiled = torch.compile(program, backend="jaten", fullgraph=True)
    for _ in range(2):  # the constant is as it was
        assert compiled(x.to(device)).item() == 15


@pytest.mark.parametrize("device", DEVICES)
def test_the_value_of_a_constant(device: str) -> None:
    compiled = torch.compile(lambda x: x * torch.tensor(2, device=x.device).item(), backend="jaten", fullgraph=True)
    assert compiled(torch.arange(3.0, device=device)).tolist() == [0, 2, 4]


def test_constants_of_other_devices_are_known_as_before() -> None:
    with FakeTensorMode():
        assert torch.tensor(3).item() == 3
        assert (torch.tensor(3) + 1).item() == 4


def test_the_flag_that_torch_compiles_is_computed_with_as_a_bool() -> None:
    """Libraries combine it: `tracing |= torch.compiler.is_compiling()`."""
    for flag in (False, True):
        tracing.set_compiling(flag)
        try:
            found = torch.compiler.is_compiling()
            assert bool(found) is flag and found == flag and repr(found) == repr(flag)
            assert (found | False) is (False | found) is flag
            assert (found & True) is (True & found) is flag
            assert (found ^ True) is (True ^ found) is not flag
        finally:
            tracing.set_compiling(False)


def _loaded(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


# Programs that call what the class of tensors of the device has of its own, by its name; further ones by "name: form".
METHODS: dict[str, Callable[[torch.Tensor], Any]] = {
    "__new__": lambda x: type(x)(x * 2) + 1,
    "__new__: of a parameter": lambda x: nn.Parameter(x * 2).detach(),
    "__new__: of a parameter without gradients": lambda x: nn.Parameter(x * 2, requires_grad=False) + 1,
    "__new__: of the input as a parameter": lambda x: nn.Parameter(x).detach() * 2,
    "_is_param": lambda x: (isinstance(x, nn.Parameter), getattr(x, "_is_param", False), x * 2),
    "__repr__": lambda x: (repr(x).split("dev")[0].split(")")[0].rstrip(", "), x * 2),
    "__repr__: print": lambda x: (print(x, file=io.StringIO()), x * 2)[1],
    "__repr__: of a result": lambda x: (str(x * 2)[:6], x * 2),
    "__format__": lambda x: (f"{x}"[:6], f"{x.sum()}", f"{x.sum():.3f}", x * 2),
    "__dir__": lambda x: ("add" in dir(x), "_carrier" in dir(x), x * 2),
    "__deepcopy__": lambda x: copy.deepcopy(x) * 2,
    "__deepcopy__: of a result": lambda x: copy.deepcopy({"of": x * 2})["of"] * 2,
    "__reduce_ex__": lambda x: copy.copy(x) * 2,
    "__reduce_ex__: of a result": lambda x: copy.copy(x * 2) * 2,
    "__reduce_ex__: its value": lambda x: (x.__reduce_ex__(2)[0].__name__, x * 2),
    "__reduce_ex__: pickle": lambda x: pickle.loads(pickle.dumps(x)) * 2,
    "__reduce_ex__: torch.save": lambda x: _loaded(x) * 2,
    "__dlpack__": lambda x: torch.from_dlpack(x) * 2,
    "__dlpack_device__": lambda x: (len(x.__dlpack_device__()), x * 2),
    "untyped_storage": lambda x: x * x.untyped_storage().nbytes(),
    "untyped_storage: of a result": lambda x: (x * 2).untyped_storage().nbytes() * x,
    "untyped_storage: written to": lambda x: (x.untyped_storage().fill_(0), x + 2)[1],
    "untyped_storage: is_shared": lambda x: (x.is_shared(), x * 2),
    "_typed_storage": lambda x: x * x.storage().size(),
    "data_ptr": lambda x: x * (x.data_ptr() == x.view(-1).data_ptr()),
    "data_ptr: of a result": lambda x: x * ((x * 2).data_ptr() != 0),
    "numpy": lambda x: x * x.numpy(force=True).sum(),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]) + x[0, 0],
    "tolist": lambda x: (x.tolist(), (x * 2).int().tolist(), x * 2),
    "_is_view": lambda x: (x._is_view(), x[1:]._is_view(), x * 2),
    "set_": lambda x: x.new_empty(0).set_(x * 2) + 1,
    "set_: to a storage": lambda x: x.new_empty(0).set_(x.untyped_storage(), 0, (3,), (1,)) + 1,
    "set_: is_set_to": lambda x: (x.is_set_to(x), x.is_set_to(x[1:]), x * 2),
    "data": lambda x: x.data * 2,
    "data: set": lambda x: (setattr(x, "data", x * 3), x + 1)[1],
    "as_subclass": lambda x: (x * 2).as_subclass(torch.Tensor) * 2,
    "out=: of other sizes": lambda x: torch.add(x, x, out=x.new_empty(0)),
    "out=: two of other sizes": lambda x: torch.max(x, 0, out=(x.new_empty(0), x.new_empty(0, dtype=torch.long))),
    "out=: as large": lambda x: torch.add(x, x, out=x.new_empty(5, 4)[:3]),
    "resize_": lambda x: x.new_empty(0).resize_(3, 4).copy_(x) * 2,
    "resize_as_": lambda x: x.clone().resize_as_(x.new_ones(2)),
    "resize_: of the input": lambda x: x.resize_(2),
    "as_strided_": lambda x: (x * 2).as_strided_((2, 2), (1, 2)) + 1,
    "squeeze_": lambda x: (x[:1] * 2).squeeze_(0) + 1,
    "swapaxes_": lambda x: (x * 2).swapaxes_(0, 1) + 1,
    "swapdims_": lambda x: (x * 2).swapdims_(0, 1) + 1,
    "t_": lambda x: (x * 2).t_() + 1,
    "t_: of the input": lambda x: (x.t_(), x * 2)[1],
    "transpose_": lambda x: ((y := x * 2).transpose_(0, 1), y[0], y.mul_(2))[1:],
    "unsqueeze_": lambda x: ((y := x * 2), (z := y[0]), y.unsqueeze_(0), z + y[0, 0])[-1],
    "detach_": lambda x: ((y := x * 2).detach_(), y + 1)[1],
    "detach_: of the input": lambda x: (x.detach_(), x * 2)[1],
    "detach_: of a view in place": lambda x: ((y := x * 2).t_(), y.detach_(), y + 1)[2],
    "swap_tensors": lambda x: (torch.utils.swap_tensors(x, x.clone() * 2), x * 2)[1],
    "module.to": lambda x: nn.Flatten()(nn.BatchNorm1d(4).to(x.device).to(torch.float64).weight[None]).detach(),
    "__create_chunk_list__": lambda x: (hasattr(x, "__create_chunk_list__"), x * 2),
}

# what each program calls, and what Python adds to every class
# torch.export puts the one that the class inherits into the class, when it has replaced it for a while
_OF_TORCH = ("__dict__", "__doc__", "__getattribute__", "__module__", "__torch_dispatch__", "__torch_function__")
# the first where a class was asked for it, as by torch.jit.script, the third by pickle
_OF_PYTHON = ("__annotations__", "__firstlineno__", "__slotnames__", "__static_attributes__")


def test_the_table_has_all_methods_of_the_class() -> None:
    own = {name for name in vars(jaten_ops.Tensor) if hasattr(torch.Tensor, name)}
    assert own - {*_OF_TORCH, *_OF_PYTHON} <= METHODS.keys()


def _plain(results: Any) -> Any:
    """Results with tensors as all that is to be equal of two."""
    return tree_map_only(
        torch.Tensor, lambda t: (isinstance(t, nn.Parameter), t.requires_grad, t.dtype, t.tolist()), results
    )


def _outcome(program: Callable[[torch.Tensor], Any], given: torch.Tensor, device: str) -> Any:
    """Results of a program on a device, and what it makes of its argument."""
    moved = given.detach().clone().to(device).requires_grad_(given.requires_grad)
    argument = nn.Parameter(moved) if isinstance(given, nn.Parameter) else moved
    return _plain((program(argument), argument))


@pytest.mark.parametrize("name", METHODS)
def test_methods_in_compiled_functions(name: str) -> None:
    """Dynamo records them or breaks the graph; the result is that of plain tensors."""
    given = torch.arange(1.0, 13).reshape(3, 4)
    expected = _outcome(METHODS[name], given, "cpu")
    compiled = torch.compile(METHODS[name], backend="jaten")
    assert [_outcome(compiled, given, "jax") for _ in range(2)] == [expected, expected]


OF_PARAMETERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "repr": lambda p: (repr(p)[:20], p * 2),
    "deepcopy": lambda p: (copy.deepcopy(p), copy.deepcopy(p) * 2),
    "copy": lambda p: copy.copy(p) * 2,
    "data_ptr": lambda p: p * (p.data_ptr() != 0),
    "isinstance": lambda p: (isinstance(p, nn.Parameter), p * 2),
    "data": lambda p: (setattr(p, "data", p.data * 3), p * 2)[1],
    "grad": lambda p: ((p * 2).sum().backward(), print(p.grad, file=io.StringIO()), p.grad * 2)[2],
}


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_methods_of_parameters_in_compiled_functions(name: str) -> None:
    given = nn.Parameter(torch.arange(3.0))
    expected = _outcome(OF_PARAMETERS[name], given, "cpu")
    assert _outcome(torch.compile(OF_PARAMETERS[name], backend="jaten"), given, "jax") == expected
