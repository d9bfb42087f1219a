"""Uses of a module and of what calls it, which may be compiled: hooks, copies, changes between calls, modes."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # private: the only name of it
from torch.utils.flop_counter import FlopCounterMode

from .stateful_modules import ROWS, WIDTH

Use = Callable[[Any, nn.Module, str], Sequence[Tensor | None]]
USES: dict[str, Use] = {}


def use(fn: Use) -> Use:
    """A row: a function of what is called, of the module behind it, and of the device, that returns what it sees."""
    USES[fn.__name__.replace("_", " ")] = fn
    return fn


def batch(device: str, rows: int = ROWS, seed: int = 0) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def loss(y: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64, device=y.device)
    return (y * weights.view_as(y)).sin().sum()


def trained(call: Any, device: str, seed: int = 0) -> Tensor:
    y: Tensor = call(batch(device, seed=seed))
    loss(y).backward()
    return y


def kept_by(module: nn.Module) -> list[Tensor | None]:
    """The state of a module, the gradients of its parameters, and what `Counting` stores."""
    return [*module.state_dict().values(), *(p.grad for p in module.parameters()), getattr(module, "last", None)]


def assert_same(got: list[Any], expected: list[Any], tolerance: float = 1e-7) -> None:
    assert [t is None for t in got] == [t is None for t in expected]
    torch.testing.assert_close(
        [t for t in got if t is not None], [t for t in expected if t is not None], rtol=tolerance, atol=tolerance
    )


def last_linear(module: nn.Module) -> nn.Linear:
    return [m for m in module.modules() if isinstance(m, nn.Linear)][-1]


@use
def training(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    return [trained(call, device, seed) for seed in range(2)]


@use
def no_grad_first(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    with torch.no_grad():
        y = call(batch(device))
    assert not y.requires_grad
    return y, trained(call, device, 1)


@use
def inference_between(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first = trained(call, device)
    module.eval()
    with torch.inference_mode():
        y = call(batch(device, seed=1)).clone()
    module.train()
    return first, y.clone(), trained(call, device, 2)


@use
def functional_call(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    parameters = {name: p.detach().clone().requires_grad_() for name, p in call.named_parameters()}
    buffers = {name: b.clone() for name, b in call.named_buffers()}
    y = torch.func.functional_call(call, {**parameters, **buffers}, (batch(device),))
    loss(y).backward()
    return [y, *(p.grad for p in parameters.values()), *buffers.values()]


@use
def gradient_transform(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    module.eval()
    parameters = {name: p.detach() for name, p in call.named_parameters()}
    call_with = torch.func.functional_call
    return [*torch.func.grad(lambda p: loss(call_with(call, p, (batch(device),))))(parameters).values()]


@use
def vmapped(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    module.eval()
    return [torch.func.vmap(lambda x: call(x))(torch.stack([batch(device, seed=seed) for seed in range(3)]))]


@use
def deep_copy(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first, other = trained(call, device), copy.deepcopy(call)
    return [first, trained(other, device, 1), call(batch(device, seed=1)), *(p.grad for p in other.parameters())]


@use
def saved_and_loaded(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first, file = trained(call, device), io.BytesIO()
    torch.save(module.state_dict(), file)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    file.seek(0)
    module.load_state_dict(torch.load(file))
    return first, call(batch(device, seed=1))


@use
def assigned(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first = call(batch(device))
    state = {n: t.clone() * 0.9 if t.is_floating_point() else t.clone() for n, t in module.state_dict().items()}
    module.load_state_dict(state, assign=True)
    return first, trained(call, device, 1)


@use
def hook_before(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    module.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    return [trained(call, device)]


@use
def backward_hook(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    seen: list[Tensor] = []
    last_linear(module).register_full_backward_hook(lambda _, __, given: seen.append(given[0].clone()))
    return [trained(call, device), *seen]


@use
def hooks_of_the_result(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    seen: list[Tensor] = []
    x = batch(device).requires_grad_()
    y = call(x)
    y.retain_grad()
    y.register_hook(lambda g: seen.append(g.clone()))
    y.register_hook(lambda g: g * 2)
    loss(y).backward()
    return [y.grad, x.grad, *seen]


@use
def optimizer_in_the_backward(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    optimizers: dict[Tensor, torch.optim.Optimizer] = {p: torch.optim.SGD([p], lr=0.1) for p in module.parameters()}

    def update(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in module.parameters():
        p.register_post_accumulate_grad_hook(update)
    return [trained(call, device, seed) for seed in range(3)]


@use
def written_result(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    x = batch(device).requires_grad_()
    y = call(x)
    y[0].mul_(3)
    y.t()[1].add_(1)
    loss(y).backward()
    return y, x.grad


@use
def frozen_between(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    results, first = [trained(call, device)], next(module.parameters())
    first.requires_grad_(False)
    first.grad = None
    results.append(trained(call, device, 1))
    first.requires_grad_(True)
    return [*results, trained(call, device, 2)]


@use
def backward_in_the_other_order(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    one, two = call(batch(device)), call(batch(device, seed=1))
    loss(two).backward()
    loss(one).backward()
    return one, two


@use
def backward_in_a_thread(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    x = batch(device).requires_grad_()
    y = call(x)
    thread = threading.Thread(target=loss(y).backward)
    thread.start()
    thread.join()
    return y, x.grad


@use
def new_weight(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first, layer = call(batch(device)), last_linear(module)
    layer.weight = nn.Parameter(layer.weight.detach() * 2)
    return first, trained(call, device)


@use
def swapped_weight(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first, layer = call(batch(device)).detach(), last_linear(module)
    torch.utils.swap_tensors(layer.weight, nn.Parameter(layer.weight.detach() * 3))
    return first, trained(call, device)


@use
def pruned(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first, layer = call(batch(device)), last_linear(module)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    second = trained(call, device, 1)
    prune.remove(layer, "weight")
    return first, second, call(batch(device, seed=1))


@use
def cached_parametrizations(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    with parametrize.cached():
        y = call(batch(device)) + call(batch(device, seed=1))
    loss(y).backward()
    return [y]


@use
def anomaly_mode(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    with torch.autograd.detect_anomaly():
        return [trained(call, device)]


@use
def batches_of_other_sizes(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    results = []
    for rows in (4, 3, 5, 7, 4):
        results.append(call(batch(device, rows)))
        loss(results[-1]).backward()
    return results


@use
def strided_batches(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    x = batch(device)
    results = [call(t) for t in (x.t().contiguous().t(), torch.stack([x, x], -1)[..., 1], x[:1].expand(ROWS, WIDTH))]
    torch.stack([*map(loss, results)]).sum().backward()
    return results


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _within(mode: Callable[[], Any]) -> Use:
    def run(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
        with mode():
            return [trained(call, device)]

    return run


USES["mode of functions"] = _within(_Functions)
USES["mode of operators"] = _within(_Operators)
USES["FLOPs counted"] = _within(lambda: FlopCounterMode(display=False))


@use
def eager_between(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first = trained(call, device)
    with torch.compiler.set_stance("force_eager"):
        second = trained(call, device, 1)
    return first, second, trained(call, device, 2)


@use
def parts_of_the_graph(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    x, last = batch(device).requires_grad_(), [*module.parameters()][-1]
    y = call(x)
    torch.autograd.backward([loss(y[:2]), y[2:]], [None, torch.ones_like(y[2:])], inputs=[x, last])
    return x.grad, last.grad


@use
def one_vector(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector.detach() * 0.9, module.parameters())
    return trained(call, device), call(batch(device)), vector


@use
def closures(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    optimizer = torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        return loss(trained(call, device))

    return [optimizer.step(closure), optimizer.step(closure)]


@use
def results_that_stay(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    with torch.no_grad():
        first = call(batch(device))
        same = first.clone()
        second = call(batch(device, seed=1))
    assert torch.equal(first, same)
    return first, second


@use
def other_dtype_between(call: Any, module: nn.Module, device: str) -> Sequence[Tensor | None]:
    first = call(batch(device))
    module.float()
    call(batch(device).float())
    module.double()
    return [first]
