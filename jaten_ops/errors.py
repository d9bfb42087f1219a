"""The exceptions of jaten. Each message names the op, what is wrong, and after "Fix:" what to do.

Bad input to an op raises ATen's exception for it (`RuntimeError`, `IndexError`, ...), not one of these. All of them can
be imported from `jaten_ops`.
"""


class JatenError(Exception):
    """Base class of the exceptions that jaten raises.

    Example:
        >>> issubclass(jaten_ops.MissingKernelError, jaten_ops.JatenError)
        True
    """


class UnknownOpError(JatenError, LookupError):
    """A registration names an overload that the installed torch does not have.

    Example:
        >>> jaten_ops.kernel("add.Tensr")(lambda self, other: self + other)
        Traceback (most recent call last):
        jaten_ops.errors.UnknownOpError: add.Tensr: no such operator overload, ... Did you mean add.Tensor, ...
    """

    def __init__(self, overload: str, where: str, close: list[str]) -> None:
        hint = f" Did you mean {', '.join(close)}?" if close else ""
        super().__init__(
            f"{overload}: no such operator overload, registered at {where}.{hint} Fix: name a whole overload, such as"
            " 'add.Tensor', or 'relu' for the default one. Make an operator of your own with `jaten_ops.op`; name one"
            " that another library has yet to define with its schema, as in 'lib::f(Tensor x) -> Tensor'."
        )


class DuplicateRegistrationError(JatenError, ValueError):
    """An overload gets a second kernel, fake or gradient, or an operator is made twice.

    Example:
        >>> jaten_ops.kernel("relu")(lambda self: self)
        Traceback (most recent call last):
        jaten_ops.errors.DuplicateRegistrationError: relu: kernel registered twice, first at ...
    """

    def __init__(self, what: str, overload: str, first: str, second: str) -> None:
        instead = ", or use `jaten_ops.override`" if what == "kernel" else ""
        super().__init__(
            f"{overload}: {what} registered twice, first at {first}, again at {second}. Fix: remove one{instead}."
        )


class MissingKernelError(JatenError, NotImplementedError):
    """An operator is called that has no JAX kernel.

    Example:
        >>> torch.eye(2, device="jax").to_sparse()
        Traceback (most recent call last):
        jaten_ops.errors.MissingKernelError: jaten::_to_sparse has no kernel (sparse: ...). Fix: ...
    """

    def __init__(self, name: str, source: str = "", reason: str | None = None) -> None:
        why = "" if reason is None else f" ({reason})"
        remedy = (
            f"register one with `jaten_ops.kernel({name.removeprefix('jaten::')!r})`"
            " (see 'Adding a kernel' in CONTRIBUTING.md)"
            if reason is None
            else "use plain dense tensors, as by sparse=False or x.to_dense()"
        )
        super().__init__(f"{name} has no kernel{source}{why}. Fix: {remedy}, or keep this part outside jaten.")


class MissingGradientError(JatenError, NotImplementedError):
    """The gradient is asked for of a kernel that `jax.vjp` refuses, and none is registered.

    Example:
        >>> @jaten_ops.op("docs::grow(Tensor x) -> Tensor", differentiable=["x"])
        ... def grow(x):
        ...     return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x)
        >>> torch.ops.docs.grow(torch.ones(2, requires_grad=True)).sum().backward()
        Traceback (most recent call last):
        jaten_ops.errors.MissingGradientError: docs::grow: jax.vjp of its kernel fails ...
    """

    def __init__(self, name: str, refusal: str) -> None:
        super().__init__(
            f"{name}: jax.vjp of its kernel fails ({refusal}). Fix: register a gradient with"
            f" `jaten_ops.gradient({name!r})`, give the kernel a jax.custom_vjp, or leave arguments without a"
            " gradient out of `differentiable=`."
        )


class GradientRegistrationError(JatenError, ValueError):
    """A gradient is registered for an operator of ATen or of another library, which have their own.

    Example:
        >>> jaten_ops.gradient("mul.Tensor")(lambda grads, args, results: {})
        Traceback (most recent call last):
        jaten_ops.errors.GradientRegistrationError: mul.Tensor: its gradient is that of ATen, ...
    """

    def __init__(self, name: str, owner: str) -> None:
        remedy = (
            "register it with that library, as with `torch.library.register_autograd`"
            if owner == "its library"
            else f"override it, with `jaten_ops.override({name!r}, gradient=...)`"
        )
        super().__init__(
            f"{name}: its gradient is that of {owner}, also in compiled graphs and on the device, where no other is"
            f" called. Fix: {remedy}, or write a `torch.autograd.Function` around it."
        )


class OverrideTargetError(JatenError, ValueError):
    """An operator that cannot be overridden: it writes to an argument, returns a view, draws random numbers.

    Example:
        >>> jaten_ops.override("relu_", kernel=lambda self: self)
        Traceback (most recent call last):
        jaten_ops.errors.OverrideTargetError: relu_ cannot be overridden: it writes to an argument. Fix: override ...
    """

    def __init__(self, target: str, problem: str, remedy: str) -> None:
        super().__init__(f"{target} cannot be overridden: it {problem}. Fix: {remedy}.")


class InvalidSchemaError(JatenError, ValueError):
    """An operator cannot be registered with its schema, or its function's parameters differ from the schema.

    Example:
        >>> jaten_ops.op("double(Tensor x) -> Tensor")
        Traceback (most recent call last):
        jaten_ops.errors.InvalidSchemaError: double(Tensor x) -> Tensor: it has no namespace. Fix: name it as in ...
    """

    def __init__(self, schema: str, problem: str, remedy: str) -> None:
        super().__init__(f"{schema}: {problem}. Fix: {remedy}.")


class UnsupportedInputError(JatenError, ValueError):
    """A tensor or value has no counterpart in JAX, or a traced program depends on a tensor's value.

    Example:
        >>> jaten_ops.to_jax(torch.ones(2))
        Traceback (most recent call last):
        jaten_ops.errors.UnsupportedInputError: tensor: got one on cpu, expected one on jax; move it with .to('jax').
    """

    def __init__(self, what: str, got: object, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}.")


class MissingValuesError(JatenError, RuntimeError):
    """The values are asked for of a tensor over a mesh that is not there.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = jax.sharding.AbstractMesh((256,), ("data",))
        >>> distributed.distribute_batch(torch.empty(512, device="meta"), mesh).sum()
        Traceback (most recent call last):
        jaten_ops.errors.MissingValuesError: a tensor over a mesh that is not there has no values. Fix: ...
    """

    def __init__(self) -> None:
        super().__init__(
            "a tensor over a mesh that is not there has no values. Fix: use it in a function that"
            " jaten_ops.distributed.estimate(function, ...) traces, or take a mesh of devices,"
            " jaten_ops.distributed.make_mesh(...)."
        )


class DeviceSlotError(JatenError, RuntimeError):
    """The device `jax` is asked for, but this process does not have it.

    Another backend has the one PrivateUse1 slot of the process; or torch has a GPU, beside which the device must be
    asked for by JATEN_DEVICE=1: torch computes no gradients of CUDA tensors in a process with another accelerator.

    Example:
        >>> try:
        ...     device = jaten_ops.from_jax(jnp.ones(2)).device
        ... except jaten_ops.DeviceSlotError:  # go on without the device
        ...     device = torch.device("cpu")
    """

    def __init__(self, owner: str | None) -> None:
        if owner is None:
            why = "torch has a GPU, and computes no gradients of CUDA tensors beside it (or JATEN_DEVICE is 0)"
            fix = "set JATEN_DEVICE=1 before the import of jaten_ops, in a process that trains no CUDA tensors"
        else:
            why = f"the PrivateUse1 slot of this process is taken by {owner!r}"
            fix = "import jaten_ops before that backend"
        super().__init__(
            f"the device 'jax' is not available: {why}."
            " Plain tensors and torch.compile(backend='jaten') work as usual."
            f" Fix: to have the device, {fix}."
        )


class UnsupportedVersionError(JatenError, RuntimeError):
    """A feature that needs an attribute of torch or JAX which the installed version does not have as jaten knows it.

    Example:
        >>> try:  # with a torch or JAX that has moved what a feature needs, its use raises this
        ...     step = jaten_ops.compile_step(lambda x: x + 1)
        ... except jaten_ops.UnsupportedVersionError as error:
        ...     print(error)
    """

    def __init__(self, use: str, version: str, moved: str, reason: str) -> None:
        super().__init__(
            f"{use}: not with {version}, in which {moved.replace(':', '.')} {reason}."
            f" Fix: install a newer jaten_ops, or an older {version.partition(' ')[0]}."
        )


class KernelError(JatenError, RuntimeError):
    """A kernel raised while a graph was compiled; the cause is attached.

    Example:
        >>> @jaten_ops.op("docs::unfinished(Tensor x) -> Tensor")
        ... def unfinished(x):
        ...     raise ValueError("not written yet")
        >>> _ = jaten_ops.fake("docs::unfinished")(torch.empty_like)
        >>> torch.compile(torch.ops.docs.unfinished, backend="jaten")(torch.ones(2))
        Traceback (most recent call last):
        jaten_ops.errors.KernelError: docs::unfinished(float32[2])...: ValueError: not written yet...
    """

    def __init__(self, name: str, arguments: str, source: str, cause: Exception) -> None:
        super().__init__(f"{name}({arguments}){source}: {type(cause).__name__}: {cause}")


class KernelResultError(JatenError, RuntimeError):
    """A kernel returned something that contradicts the op's schema or fake; or its fake or gradient did.

    Example:
        >>> @jaten_ops.op("docs::pair(Tensor x) -> Tensor")
        ... def pair(x):
        ...     return x, x
        >>> torch.ops.docs.pair(torch.ones(2))
        Traceback (most recent call last):
        jaten_ops.errors.KernelResultError: docs::pair: its kernel returned (an array, an array), ...
    """

    def __init__(
        self, name: str, got: object, expected: object, source: str = "", by: str = "fake", of: str = "kernel"
    ) -> None:
        remedy = {
            "fake": "correct the kernel, or give the op a fake with `jaten_ops.fake`",
            "registration": "return a dict with the gradients of these arguments, a list for a list of tensors",
            "schema": "return an array for a Tensor, a tuple of as many for several results, a list for a Tensor[]",
            "written argument": "return its new value in its shape and dtype, after the op's own results",
        }[by]
        if by == "fake" and name.startswith("jaten_override::"):
            remedy = "correct the kernel, whose results are like those of the operator that it overrides"
        if of == "fake":
            remedy = "return tensors, such as `torch.empty_like(x)`"
        what = " (shapes and dtypes)" if by in ("fake", "written argument") else ""
        super().__init__(
            f"{name}{source}: its {of} returned {got}, its {by} says {expected}{what}. Fix: if the {by} is right,"
            f" {remedy}."
        )
