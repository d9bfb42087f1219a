"""The cases of the benchmarks, made smaller: each builds, and its two models agree, in output and gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from benchmarks import calls, contenders, hlo, measure, processes, step_calls, table, torchax
from benchmarks.models import (
    CASES,
    Case,
    case_of,
    decoders,
    drawn,
    encoders,
    graph,
    mobile,
    recurrent,
    resnet,
    small,
    unet,
)
from benchmarks.models.case import Weights, in_jax_layout, jax_loss, torch_loss

# compiles in a third of the time, and each is called once
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

SMALLER: dict[Any, dict[str, Any]] = {
    decoders: {"VOCABULARY": 300, "DEPTH": 1, "LLAMA_DEPTH": 1, "LENGTH": 12},
    encoders: {"VOCABULARY": 300, "DEPTH": 1, "LENGTH": 12, "VIT_DEPTH": 1, "PIXELS": 64, "VIT_CLASSES": 10},
    graph: {"NODES": 50, "EDGES": 200},
    mobile: {"BLOCKS": mobile.BLOCKS[:3], "LAST": 32, "WIDTHS": (8, 12, 16, 20), "DEPTHS": (1, 1, 1, 1), "CLASSES": 10},
    recurrent: {"LENGTH": 5, "DEPTH": 1, "LSTM_LENGTH": 5, "VOCABULARY": 50},
    resnet: {"WIDTHS": (8, 12, 16, 20), "DEPTH": 1, "CLASSES": 10},
    small: {"MLP_SIZES": (16, 32, 32, 8)},
    unet: {"WIDTHS": (8, 16, 24), "PIXELS": 16},
}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, sizes in SMALLER.items():
        for name, size in sizes.items():
            assert hasattr(module, name)
            monkeypatch.setattr(module, name, size)


def _near(actual: jax.Array, expected: torch.Tensor, what: str, scale: float | None = None) -> None:
    """Up to a share of the largest number, since sums of numbers that cancel have no digits of their own."""
    largest = expected.abs().max().item() if scale is None else scale
    np.testing.assert_allclose(np.asarray(actual), expected.numpy(), rtol=0, atol=2e-5 * largest, err_msg=what)


MODELS = {case.jax_model: case for case in CASES.values()}  # each model once


def test_models_are_drawn_by_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("electra", "distilbert", "nowhere")  # the last one is passed over
    monkeypatch.setattr(drawn, "LIBRARIES", {"transformers": (lambda: names, drawn.LIBRARIES["transformers"][1])})
    one, other = ([case.name for case in drawn.draw(1, 2)] for _ in range(2))
    assert one == other and set(one) == {"transformers:electra", "transformers:distilbert"}


def test_a_drawn_model_is_a_case() -> None:
    case = case_of("transformers:distilbert")
    assert case.jobs == ("inference", "training") and not contenders.takes_part("JAX", case, "inference")
    first, second = (case.make() for _ in range(2))
    losses = [torch_loss(module.train()(*inputs), target) for module, inputs, target in (first, second)]
    assert torch.equal(*losses)  # without dropout


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_case_builds(case: Case) -> None:
    module, inputs, target = case.make()
    with torch.no_grad():
        output = module(*inputs)
    assert (target is None) == (case.jobs == ("inference",))
    if target is not None:
        assert torch.isfinite(torch_loss(output, target))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", MODELS.values(), ids=lambda c: c.name)
def test_inference(case: Case) -> None:
    module, inputs, _ = case.make()
    parameters, buffers, arrays, _ = case.make_jax()

    def infer(weights: Weights, *arrays: jax.Array) -> tuple[jax.Array, Weights]:
        updates: Weights = {}
        return case.jax_model(weights, updates if case.stateful else None, *arrays), updates

    output, updates = jax.jit(infer, compiler_options=FAST)(parameters | buffers, *arrays)
    with torch.no_grad():
        expected = module.eval()(*inputs)
    _near(case.output_of_jax(output), expected, "output")
    written = {n: b for n, b in module.named_buffers() if n in buffers and not np.array_equal(buffers[n], b.numpy())}
    assert written.keys() == updates.keys()
    for name, buffer in written.items():
        _near(updates[name], buffer, name)


TRAINED = {case.jax_model: case for case in CASES.values() if case.target}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in TRAINED.values()])
def test_training(case: Case) -> None:
    module, inputs, target = case.make()
    parameters, buffers, arrays, goal = case.make_jax()
    assert target is not None and goal is not None

    def loss_of(parameters: Weights) -> tuple[jax.Array, Weights]:
        updates: Weights = {}
        return jax_loss(case.jax_model(parameters | buffers, updates, *arrays), goal), updates

    run = jax.jit(jax.value_and_grad(loss_of, has_aux=True), compiler_options=FAST)
    (loss, updates), gradients = run(parameters)
    expected = torch_loss(module(*inputs), target)
    expected.backward()
    _near(loss, expected.detach(), "loss")
    found = {n: in_jax_layout(module, n, p.grad) for n, p in module.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    largest = max(g.abs().max().item() for g in found.values())
    for name, gradient in found.items():
        _near(gradients[name], gradient, name, largest)
    for name, buffer in module.named_buffers():
        if name in updates:
            _near(updates[name], buffer, name, scale=1)  # a mean may be nothing but rounding


def test_disagreement_is_seen() -> None:
    right = [np.array([1.0, 2.0]), np.array([1.0, 2.0])]
    tolerances = measure.TOLERANCES[torch.float32]
    measure.check("inference", right, right, tolerances)
    with pytest.raises(AssertionError, match="the output is off by"):
        measure.check("inference", [right[0], right[1] + 0.01], right, tolerances)
    with pytest.raises(AssertionError, match="shape"):
        measure.check("inference", [r[:, None] for r in right], right, tolerances)
    with pytest.raises(AssertionError, match="the output is off by nan"):
        measure.check("inference", [r * np.nan for r in right], right, tolerances)
    losses = [np.array(x) for x in (4.0, 3.0, 2.0)]
    measure.check("training", losses, losses, tolerances)
    with pytest.raises(AssertionError, match="the change of the loss"):
        measure.check("training", [losses[0]] * 3, losses, tolerances)


@pytest.mark.exhaustive
def test_errors_name_no_folder_of_this_machine() -> None:
    here = Path(measure.__file__)
    words = measure.in_words(ValueError(f"at {torch.__file__}:1 and {here}:2"))
    assert words == f"ValueError: at torch/__init__.py:1 and {here.relative_to(Path.cwd())}:2"


def test_torchax_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torchax.VARIABLE, sys.executable)
    assert contenders.takes_part(contenders.TORCHAX, CASES["linear"], "inference")
    job = torchax.Elsewhere(CASES["linear"], "inference", torch.float32)
    with pytest.raises(RuntimeError, match="torchax's process ended with 1"):
        job()
    monkeypatch.delenv(torchax.VARIABLE)
    assert not contenders.takes_part(contenders.TORCHAX, CASES["linear"], "inference")


def _event(name: str, begin: float, duration: float, program: int = 1) -> SimpleNamespace:
    stats = [("hlo_op", name), ("program_id", program)]
    return SimpleNamespace(start_ns=begin, duration_ns=duration, stats=stats)


def test_kinds_of_kernels() -> None:
    def program(x: jax.Array) -> jax.Array:
        product = jax.lax.fori_loop(0, 3, lambda _, y: jax.numpy.tanh(y) @ y, x)
        return jax.numpy.concatenate([product.T, x])

    (kinds,) = hlo.programs_of([jax.jit(program).lower(np.ones((64, 64), np.float32)).compile().as_text()])
    by_kind = {kind: [name for name, of in kinds.items() if of == kind] for kind in ("products", "loops", "moves")}
    assert any("dot" in name for name in by_kind["products"])
    assert any("tanh" in name for name in by_kind["loops"]) and any("concat" in name for name in by_kind["moves"])
    # a kernel within another is no part of that one's own time, and what is of no known program is a loop
    dot, loop = by_kind["products"][0], by_kind["loops"][0]
    line = SimpleNamespace(events=[_event(loop, 0, 5e6), _event(dot, 1e6, 3e6), _event("of no program", 9e6, 1e6, 2)])
    assert hlo.kinds_of([line], [kinds], calls=2) == {"products": 1.5, "loops": 1.5}


def test_a_call_of_onednn_is_a_product() -> None:
    """In a profile its name has an end that it does not have in the program."""
    call = '%convolution.1 = f32[2]{0} custom-call(%x, %w), custom_call_target="__onednn$convolution"'
    (kinds,) = hlo.programs_of([f"ENTRY %main (x: f32[2], w: f32[2]) -> f32[2] {{\n  ROOT {call}\n}}"])
    line = SimpleNamespace(events=[_event("convolution.1__onednn$convolution", 0, 2e6)])
    assert hlo.kinds_of([line], [kinds], calls=1) == {"products": 2.0}


def _profile(case: str) -> table.Result:
    mine = {"call": 4.0, "products": 2.0, "loops": 1.0, "optimizer": 0.5, "around": 0.5}
    times = {"jaten": mine, "Inductor": {"call": 5.0, "products": 5.0, "optimizer": 0.0, "around": 0.0}}
    return {"case": case, "job": "training", "dtype": "float32", "milliseconds": times}


def _result(case: str, jaten: float) -> table.Result:
    seconds = {"eager": 2.0, "Inductor": 1.5, "jaten": jaten, "JAX": 1.0, "capture alone": 0.1}
    rounds = {name: {"first call": 3.0, "rounds": [s, s * 1.01, s]} for name, s in seconds.items()}
    return {"case": case, "job": "inference", "dtype": "float32", "seconds": rounds, "errors": {"jaten on jax": "why"}}


def test_a_case_leaves_the_others_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `make bench OPTIONS="--case linear"`."""
    report = pytest.importorskip("benchmarks.report", reason="needs matplotlib, of the extra `examples`")
    measurements, out = tmp_path / "measurements.json", tmp_path / "docs"
    monkeypatch.setattr(sys, "argv", ["report", str(measurements), "--out", str(out)])

    def published(*results: table.Result, **environment: Any) -> dict[str, float]:
        about = processes.about("benchmarks", 1)
        about["environment"] |= environment
        processes.write(measurements, {**about, "results": results})
        report.main()
        saved = json.loads((out / "benchmarks.json").read_text(encoding="utf-8"))["results"]
        page = (out / "benchmarks.md").read_text(encoding="utf-8")
        assert all(r["case"] in page for r in saved)
        return {r["case"]: r["seconds"]["jaten"]["rounds"][0] for r in saved}

    whole = published(_result("linear", 1.0), _result("mlp", 2.0))
    assert whole == {"linear": 1.0, "mlp": 2.0}
    assert published(_result("linear", 3.0)) == {"linear": 3.0, "mlp": 2.0}
    assert published(_result("lstm", 4.0)) == {"linear": 3.0, "mlp": 2.0, "lstm": 4.0}
    # a part from elsewhere is not put beside them; all of them are
    assert published(_result("linear", 5.0), processor="another") == {"linear": 3.0, "mlp": 2.0, "lstm": 4.0}
    every = [_result(name, 6.0) for name in ("linear", "mlp", "lstm")]
    assert published(*every, processor="another") == {"linear": 6.0, "mlp": 6.0, "lstm": 6.0}


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = pytest.importorskip("benchmarks.report", reason="needs matplotlib, of the extra `examples`")
    measurements, out = tmp_path / "measurements.json", tmp_path / "docs"
    monkeypatch.setattr(sys, "argv", ["report", str(measurements), "--out", str(out)])
    for slower in (1, 2):
        results = [_result("parameters-0", 1.0), _result("parameters-10", 0.5 * slower)]
        found = {"results": results, "profiles": [_profile("mlp")]}
        processes.write(measurements, {**processes.about("benchmarks", 1), **found})
        report.main()
    said = capsys.readouterr().out
    assert "nothing to compare with" in said
    assert "slower: parameters-10, inference, float32: jaten / JAX is 1.00 (1.00-1.00), was 0.50" in said
    page = (out / "benchmarks.md").read_text(encoding="utf-8")
    assert "inference, jaten / Inductor: 0.67 in the geometric mean of 2 cases" in page
    assert "jaten on jax failed: why" in page
    assert "| 0.80 | 0.50 | products 50% |" in page
    plots = {plot.stem for plot in (out / "benchmarks").iterdir()}
    assert plots == {"inference", "first-call-inference", "overhead"}


def test_empty_columns_are_left_out() -> None:
    lines = ["| case | JAX | jaten |", "| --- | --- | --- |", "| mlp |  | 1 |", "| unet |  |  |"]
    assert table.without_empty_columns(lines) == ["| case | jaten |", "| --- | --- |", "| mlp | 1 |", "| unet |  |"]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_step_is_the_sum_of_its_parts(device: str) -> None:
    step, *parts, hot = calls.parts_of(CASES["linear"], "training", device, steps=70)
    assert step == pytest.approx(sum(parts)) and min(*parts, hot) > 0


def test_a_compiled_step_takes_longer_than_each_of_its_parts() -> None:
    """Their medians need not add up to its own."""
    step, *parts = step_calls.parts_of(CASES["linear"], calls=70)
    assert step > max(parts) and min(parts) > 0
