"""Passes of the backend, watched while programs are compiled."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch.utils._pytree import tree_leaves

from jaten_ops.backend import pipeline
from jaten_ops.backend.graph_info import GraphInfo
from jaten_ops.backend.graph_text import text_of

Run = Callable[[torch.fx.GraphModule, GraphInfo], GraphInfo]


@contextlib.contextmanager
def wrapped(name: str, wrap: Callable[[Run], Run]) -> Iterator[None]:
    """For the length of a block a pass is what a function makes of it; nothing that is kept on disk is used."""
    assert any(row.name == name for row in pipeline.PASSES)
    rows = [row._replace(run=wrap(row.run)) if row.name == name else row for row in pipeline.PASSES]
    with mock.patch.object(pipeline, "PASSES", rows), mock.patch.dict(os.environ, {"JATEN_CACHE": "0"}):
        yield


@contextlib.contextmanager
def watched(name: str, told: Callable[[torch.fx.GraphModule], Any]) -> Iterator[None]:
    """For the length of a block a function is told of each graph that comes out of a pass."""

    def wrap(run: Run) -> Run:
        def running(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
            found = run(gm, info)
            told(gm)
            return found

        return running

    with wrapped(name, wrap):
        yield


def without(name: str) -> contextlib.AbstractContextManager[None]:
    """For the length of a block a pass does nothing."""
    return wrapped(name, lambda _: lambda gm, info: info)


_FOUND = (
    *("relations", "is_wrapped", "replaces_memory", "written", "offsets", "writes", "static_inputs", "first_result"),
    *("new_values", "seen", "result_strides", "parts", "numbers", "partial_writes"),
)


def _found(before: GraphInfo, after: GraphInfo) -> list[str]:
    """The findings of a pass, a line each."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in _FOUND]
    lines = [f"{name} = {_plain(new)}" for name, old, new in pairs if new != old]
    if after.views is not before.views and after.views is not None:
        views = after.views
        lines += [f"views of {views.inputs} and {views.results} results: {views.outputs}", *map(_view, views.steps)]
    return lines


def _view(step: Any) -> str:
    return f"  {step.overload or 'item'} of {step.operand}: {step.args}"


def _plain(value: Any) -> Any:
    """A value as text that is the same in each process."""
    if isinstance(value, frozenset):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(map(_plain, value))
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "computed"):
        return f"donated={value.donated} given={[_plain(g) for g in value.given]}"
    return value.name if isinstance(value, torch.fx.Node) else str(value) if callable(value) else value


def unnumbered(text: str, *names: str) -> str:
    """The text with nodes of these names without the numbers that they get, which differ from torch to torch."""
    return re.sub(rf"\b({'|'.join(names)})_\d+\b", r"\1", text)


def golden(name: str, program: Callable[..., Any], *inputs: Any, **options: Any) -> str:
    """The graphs of a program, called once, and of its gradients before and after a pass, with the pass's findings.

    Graphs with which it does nothing are left out.
    """
    texts: list[str] = []

    def wrap(run: Run) -> Run:
        def running(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
            before = text_of(gm)
            found = run(gm, info)
            gm.graph.lint()
            after, lines = text_of(gm), _found(info, found)
            if after != before or lines:
                rewritten = ["", "=>", "", *after.split("\n")] if after != before else []
                texts.append(
                    "\n".join([f"--- {info.kind}", *before.split("\n"), *rewritten, *([""] if lines else []), *lines])
                )
            return found

        return running

    torch._dynamo.reset()
    torch.manual_seed(0)
    with wrapped(name, wrap), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = tree_leaves(torch.compile(program, backend="jaten", fullgraph=True, **options)(*inputs))
        losses = [r.cpu().sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
    torch._dynamo.reset()
    return "\n\n".join(texts)
