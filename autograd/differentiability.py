"""Which ops have a gradient, and the companion op `<name>_vjp` that computes it."""

from __future__ import annotations

from jaten_ops.schema import OpSpec


def vjp_spec(spec: OpSpec) -> OpSpec:
    """The companion of a differentiable op.

    `f.o(Tensor x, ...) -> ...` has `f_vjp.o(Tensor[] grads, bool[] output_mask, Tensor x, ...) -> Tensor[]`: grads are
    those of the differentiable results, output_mask selects among the differentiable arguments, and the results are
    the selected gradients. It is differentiable itself: its own companion has another pair of names in front.
    """
    packet, _, suffix = spec.overload.partition(".")
    arguments = spec.schema[len(spec.overload) + 1 : spec.schema.rindex(") ->")]
    name = f"{packet}_vjp" + (f".{suffix}" if suffix else "")
    order = packet.count("_vjp")
    grads, output_mask = ("grads", "output_mask") if not order else (f"grads_{order}", f"output_mask_{order}")
    return OpSpec(
        schema=f"{name}(Tensor[] {grads}, bool[] {output_mask}, {arguments}) -> Tensor[]",
        differentiable=(grads, *spec.differentiable),
        namespace=spec.namespace,
    )
