"""Changes to a program and to its calls: a transform, which compilers see, and a way of use.

`transform` makes another program of a program; what compiles sees its result. `use` calls what has been made (compiled
or not) on inputs, as a user's program would, and returns all that a user could see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import transforms as t
from . import uses as u
from .programs import Program
from .uses import Run, Use, loss_of


@dataclass(frozen=True)
class Surrounding:
    """A change to a program or to its calls.

    Attributes:
        transform: makes another program of it.
        use: calls it; its second argument makes inputs, on the way's device, of a seed and a size.
        needs: traits that a program must have.
        excludes: traits that it must not have.
    """

    name: str
    transform: Callable[[Run], Run] = t.same
    use: Use = u.called
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def applies_to(self, program: Program) -> bool:
        return program.traits.issuperset(self.needs) and program.traits.isdisjoint(self.excludes)


_VALUES = ("integers", "reads values")  # of which there is no loss
_LEAVES = (*_VALUES, "writes inputs")  # of which there are no gradients by their inputs
_DERIVATIVES = {"needs": ("smooth",), "excludes": ("inner autograd",)}
_OF_EXAMPLES = {"needs": ("smooth", "scalar numbers"), "excludes": ("inner autograd",)}
_EXAMPLES = {"needs": ("scalar numbers",)}

_AROUND = (
    Surrounding("a call"),
    Surrounding("no_grad", use=u.under(torch.no_grad)),
    Surrounding("inference_mode", use=u.under(torch.inference_mode)),
    Surrounding("backward", use=u.backward, excludes=_LEAVES),
    Surrounding("gradients add up", use=u.accumulated, excludes=_LEAVES),
    Surrounding("double backward", use=u.double_backward, needs=("smooth",)),
    Surrounding("threads", use=u.in_threads, excludes=(*_LEAVES, "higher order")),  # torch.cond captures eagerly, too
    Surrounding("sizes", use=u.of_sizes, excludes=_LEAVES),
    Surrounding("two calls", use=u.twice),
    Surrounding("after an error", use=u.raised_before, excludes=_LEAVES),
    Surrounding("float64 by default", use=u.in_double, excludes=_LEAVES),
    Surrounding("inputs written after", use=u.inputs_written_after),
    Surrounding("outputs written after", use=u.outputs_written_after),
    Surrounding("inputs share memory", use=u.sharing_inputs),
    Surrounding("one tensor for all", use=u.one_input_for_all),
    Surrounding("strided inputs", use=u.strided),
    Surrounding("non-leaves", use=u.of_non_leaves, excludes=_VALUES),
    Surrounding("hooks", use=u.with_hooks, excludes=(*_LEAVES, "returns views")),
    Surrounding("saved tensor hooks", use=u.with_saved_hooks, excludes=_LEAVES),
    Surrounding("a break after", t.with_break),
    Surrounding("in-place around", t.in_place_around),
    Surrounding(
        "in-place around, backward", t.in_place_around, u.of_non_leaves,
        excludes=(*_LEAVES, "returns views", "inner autograd"),
    ),
    Surrounding("checkpoint", t.checkpointed, u.backward, excludes=(*_LEAVES, "draws")),
)  # fmt: skip

_TRANSFORMED = (
    Surrounding("functionalize", t.functionalized, excludes=(*_LEAVES, "inner autograd", "breaks")),
    Surrounding("grad", t.of_loss(t.grad), **_DERIVATIVES),
    Surrounding("grad(grad)", t.grad_n(2), **_DERIVATIVES),
    Surrounding("grad(grad(grad))", t.grad_n(3), **_DERIVATIVES),
    Surrounding("grad, then backward", t.of_loss(t.grad), u.of_non_leaves, **_DERIVATIVES),
    Surrounding("vjp", t.vjp, **_DERIVATIVES),
    Surrounding("jvp", t.jvp, **_DERIVATIVES),
    Surrounding("jacrev", t.by_first(torch.func.jacrev), **_DERIVATIVES),
    Surrounding("jacfwd", t.by_first(torch.func.jacfwd), **_DERIVATIVES),
    Surrounding("hessian", t.by_first(lambda f: torch.func.hessian(lambda x: loss_of(f(x)))), **_DERIVATIVES),
    Surrounding("jvp(grad)", t.by_first(t.jvp_of_grad), **_DERIVATIVES),
    Surrounding("grad(jvp)", t.by_first(t.grad_of_jvp), **_DERIVATIVES),
    Surrounding("vmap", t.vmap, u.batched, **_EXAMPLES),
    Surrounding("vmap(vmap)", lambda f: t.vmap(t.vmap(f)), u.batched_twice, **_EXAMPLES),
    Surrounding("vmap(grad)", t.vmap_of_grad, u.batched, **_OF_EXAMPLES),
    Surrounding("grad(vmap)", t.grad_of_vmap, u.batched, **_OF_EXAMPLES),
    Surrounding("vmap(jvp(grad))", lambda f: t.vmap(t.by_first(t.jvp_of_grad)(f)), u.batched, **_OF_EXAMPLES),
)

SURROUNDINGS = {s.name: s for s in (*_AROUND, *_TRANSFORMED)}
