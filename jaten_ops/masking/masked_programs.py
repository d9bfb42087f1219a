"""The rules of `masked_run` for operations that run a program: calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.export import is_symbolic_dim
from jax.extend import core

from .masked_run import MaskedStep, masked_rule
from .masked_values import NotMasked, padded_array

_CALLS = "jit pjit closed_call core_call remote_call custom_jvp_call custom_vjp_call remat2 checkpoint"


@masked_rule(*_CALLS.split())
def _call(step: MaskedStep) -> Sequence[Any]:
    program = step.params["jaxpr" if "jaxpr" in step.params else "call_jaxpr"]
    return step.run(_closed(program), step.operands)


def _closed(program: Any) -> Any:
    return program if hasattr(program, "consts") else core.ClosedJaxpr(program, ())


def _inside(step: MaskedStep, program: Any) -> Any:
    """A program as a function of arrays, whose elements come first, as those of its results."""

    def run(*arrays: Any) -> list[Any]:
        shapes = [v.aval.shape for v in program.jaxpr.invars]
        values = [step.masks.of(a, s) for a, s in zip(arrays, shapes, strict=True)]
        return [padded_array(step.masks.all_leading(v)) for v in step.run(program, values)]

    return run


def _leading(step: MaskedStep, values: Sequence[Any]) -> list[Any]:
    return [padded_array(step.masks.all_leading(v)) for v in values]


def _results(step: MaskedStep, arrays: Sequence[Any]) -> list[Any]:
    return [step.of(a, None, i) for i, a in enumerate(arrays)]


@masked_rule("cond")
def _cond(step: MaskedStep) -> Sequence[Any]:
    if step.params.get("branches_platforms") is not None:
        raise NotMasked("has a form for each platform")
    branches = [_inside(step, _closed(b)) for b in step.params["branches"]]
    return _results(step, lax.switch(step.operands[0], branches, *_leading(step, step.operands[1:])))


@masked_rule("while")
def _while(step: MaskedStep) -> Sequence[Any]:
    tests, bodies = step.params["cond_nconsts"], step.params["body_nconsts"]
    arrays = _leading(step, step.operands)
    of_test, of_body, start = arrays[:tests], arrays[tests : tests + bodies], arrays[tests + bodies :]
    test, body = (_inside(step, _closed(step.params[name])) for name in ("cond_jaxpr", "body_jaxpr"))
    return _results(step, lax.while_loop(lambda c: test(*of_test, *c)[0], lambda c: body(*of_body, *c), start))


@masked_rule("scan")
def _scan(step: MaskedStep) -> Sequence[Any]:
    if is_symbolic_dim(step.params["length"]):
        raise NotMasked("goes over an open dimension step by step")
    constants, start, over = _parts_of_scan(step, _leading(step, step.operands))
    body, count = _inside(step, _closed(step.params["jaxpr"])), len(start)

    def each(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*constants, *carry, *x)
        return results[:count], results[count:]

    how = {name: step.params[name] for name in ("length", "reverse", "unroll")}
    held, each_one = lax.scan(each, list(start), list(over), **how)
    return _results(step, [*held, *each_one])


def _parts_of_scan(step: MaskedStep, arrays: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """The operands of a scan: its constants, its carried values, and the sequences that it iterates over."""
    if "ft_in" in step.params:  # JAX 0.11
        return [list(part) for part in step.params["ft_in"].update(arrays).unpack()]
    first = step.params["num_consts"]
    second = first + step.params["num_carry"]
    return arrays[:first], arrays[first:second], arrays[second:]
