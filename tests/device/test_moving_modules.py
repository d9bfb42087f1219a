"""`module.to("jax")` beside `module.to("cuda")`: what stays, what moves, and what torch.nn.utils makes of modules."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import fusion, parametrizations, parametrize, prune, stateless

import jaten_ops

X = torch.linspace(-1, 1, 15).view(5, 3)


def test_parameters_stay_the_objects_they_are() -> None:
    model, calls = nn.Linear(3, 2), []
    weight, reference = model.weight, weakref.ref(model.weight)
    weight.register_hook(lambda gradient: calls.append("hook"))
    weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("after"))
    weight.note = "kept"
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for device, kind in (("jax", jaten_ops.Tensor), ("cpu", nn.Parameter), ("jax", jaten_ops.Tensor)):
        model.to(device)
        assert model.weight is weight is reference() and type(weight) is kind and isinstance(weight, nn.Parameter)
        assert weight.note == "kept" and weight.device.type == device
        if weight.grad is not None:
            assert weight.grad.device.type == device
        before = weight.detach().clone()
        optimizer.zero_grad()
        model(X.to(device)).sum().backward()
        optimizer.step()
        assert calls == ["hook", "after"] and not torch.equal(weight, before)
        calls.clear()
    assert model.half().weight is weight and weight.dtype == weight.grad.dtype == torch.float16


def test_a_graph_from_before_says_that_it_lost_its_parameter() -> None:
    model = nn.Linear(3, 2)
    loss = model(X).sum()
    model.to("jax")
    with pytest.raises(RuntimeError, match="moved to another device"):
        loss.backward()
    loss = model(X.to("jax")).sum()
    model.to("jax")  # where it is
    loss.backward()
    assert model.weight.grad is not None


def test_moves_for_inference() -> None:
    model = nn.Linear(3, 2)
    expected = model(X)
    with torch.inference_mode():
        torch.testing.assert_close(model.to("jax")(X.to("jax")).cpu(), expected)
        torch.testing.assert_close(model.cpu()(X), expected)


def test_swapped_tensors() -> None:
    a, b, c = nn.Parameter(torch.ones(2, device="jax")), torch.zeros(3, device="jax"), torch.full((4,), 5.0)
    torch.utils.swap_tensors(a, b)
    assert a.tolist() == [0, 0, 0] and b.tolist() == [1, 1] and b.requires_grad and isinstance(b, nn.Parameter)
    torch.utils.swap_tensors(b, c)
    assert type(b) is torch.Tensor and b.tolist() == [5] * 4 and type(c) is jaten_ops.Tensor and c.tolist() == [1, 1]
    d, e = torch.zeros(1), torch.ones(2)
    torch.utils.swap_tensors(d, e)
    assert d.tolist() == [1, 1]


LAZY: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "LazyLinear": (lambda **options: nn.LazyLinear(2, **options), (5, 3)),
    "LazyBatchNorm1d": (nn.LazyBatchNorm1d, (5, 3)),
    "LazyConv1d": (lambda **options: nn.LazyConv1d(2, 1, **options), (5, 3, 4)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules(name: str) -> None:
    make, shape = LAZY[name]
    made = make(device="jax"), make().to("jax"), copy.deepcopy(make().to("jax")), make().to("jax").double().float()
    for model in made:
        assert all(nn.parameter.is_lazy(p) and p.device.type == "jax" for p in model.parameters())
        model(torch.ones(shape, device="jax")).sum().backward()
        assert type(model).__name__ == name.removeprefix("Lazy")
        assert all(type(p) is jaten_ops.Tensor and p.grad is not None for p in model.parameters())
    compiled = torch.compile(lambda model, x: model.to("jax")(x), backend="jaten", dynamic=False)
    assert compiled(make(), torch.ones(shape, device="jax")).device.type == "jax"
    for model in (make().to("jax").cpu(), pickle.loads(pickle.dumps(make().to("jax")))):
        assert model(torch.ones(shape)).device.type == "cpu"


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def _on_first(change: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = _network()
        change(model[0], **options)
        return model

    return make


def _pruned_globally() -> nn.Module:
    model = _network()
    both = [(model[0], "weight"), (model[2], "weight")]
    prune.global_unstructured(both, pruning_method=prune.L1Unstructured, amount=0.3)
    return model


CHANGED: dict[str, Callable[[], nn.Module]] = {
    "weight_norm of old": _on_first(nn.utils.weight_norm),  # type: ignore[arg-type]  # deprecated
    "spectral_norm of old": _on_first(nn.utils.spectral_norm),
    "weight_norm": _on_first(parametrizations.weight_norm),
    "spectral_norm": _on_first(parametrizations.spectral_norm),
    "orthogonal": _on_first(parametrizations.orthogonal),
    "orthogonal, cayley": _on_first(parametrizations.orthogonal, orthogonal_map="cayley"),
    "orthogonal, householder": _on_first(parametrizations.orthogonal, orthogonal_map="householder"),
    "pruned": _on_first(prune.ln_structured, name="weight", amount=0.5, n=2, dim=0),
    "pruned globally": _pruned_globally,
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.exhaustive] if "orthogonal" in n else []) for n in CHANGED]
)
def test_changed_modules_train(name: str) -> None:
    """The old utilities keep a weight that is not a parameter, with its graph."""
    learnt = []
    for device in ("cpu", "jax"):
        model = CHANGED[name]().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(X.to(device)).square().mean().backward()
            optimizer.step()
        learnt.append({n: t.cpu().clone() for n, t in model.state_dict().items()})
        model.cpu()(X).sum().backward()
    torch.testing.assert_close(learnt[1], learnt[0], rtol=1e-4, atol=1e-5)


def test_changes_are_undone() -> None:
    model = _network().to("jax")
    expected = model(X.to("jax"))
    parametrizations.weight_norm(model[0])
    parametrize.remove_parametrizations(model[0], "weight")
    torch.testing.assert_close(model(X.to("jax")), expected)
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.remove(model[0], "weight")
    assert isinstance(model[0].weight, nn.Parameter) and (model[0].weight == 0).sum() == 6


def test_vectors_and_norms_of_parameters() -> None:
    model = _network().to("jax")
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), vector * 2)
    model(X.to("jax")).sum().backward()
    for foreach in (False, True):
        before = nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
    total = nn.utils.get_total_norm([p.grad for p in model.parameters()], norm_type=2.0)
    torch.testing.assert_close(torch.stack([before, total]).cpu(), torch.tensor([0.5, 0.5]))
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    assert max(p.grad.abs().max() for p in model.parameters()) <= 0.01


@pytest.mark.filterwarnings("ignore:.*stateless.functional_call.*deprecated")
def test_fused_skipped_and_called_with_others() -> None:
    torch.manual_seed(0)
    pair = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval().to("jax")
    image = torch.randn(1, 2, 4, 4, device="jax")
    fused = fusion.fuse_conv_bn_eval(*pair)
    torch.testing.assert_close(fused(image), pair(image))
    assert isinstance(fused.weight, nn.Parameter)
    assert nn.utils.skip_init(nn.Linear, 2, 3, device="jax").weight.shape == (3, 2)
    model = _network().to("jax")
    zeros = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for call in (torch.func.functional_call, stateless.functional_call):
        assert call(model, zeros, (X.to("jax"),)).abs().sum() == 0
    assert model(X.to("jax")).abs().sum() > 0
