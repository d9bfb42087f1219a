"""The exceptions of jaten. Each message names the op, what is wrong, and what to do.

Bad input to an op raises what ATen raises for it (`RuntimeError`, `IndexError`, ...), not one of these. All of them can
be imported from `jaten_ops`.
"""


class JatenError(Exception):
    """Base of the exceptions that jaten itself raises."""


class UnknownOpError(JatenError, LookupError):
    """A name that is no overload of the installed torch."""

    def __init__(self, overload: str, where: str, close: list[str]) -> None:
        hint = f" Did you mean {', '.join(close)}?" if close else ""
        super().__init__(
            f"{overload}: no such operator overload, registered at {where}.{hint}"
            " Names are whole overloads, such as 'add.Tensor', or 'relu' for the default overload;"
            " operators of your own are made by `jaten_ops.op`. One that another library has yet to define"
            " is named with its schema, as in 'lib::f(Tensor x) -> Tensor'."
        )


class DuplicateRegistrationError(JatenError, ValueError):
    """Two registrations of one thing for one overload."""

    def __init__(self, what: str, overload: str, first: str, second: str) -> None:
        super().__init__(f"{overload}: {what} registered twice, first at {first}, again at {second}. Remove one.")


class MissingKernelError(JatenError, NotImplementedError):
    """An overload whose schema is known but which has no JAX kernel."""

    def __init__(self, name: str, source: str = "", reason: str | None = None) -> None:
        remedy = (
            f"Register one with `jaten_ops.kernel({name.removeprefix('jaten::')!r})`"
            " (see 'Adding a kernel' in CONTRIBUTING.md)"
            if reason is None
            else f"It is left out ({reason}): write it with plain dense tensors, as by sparse=False or x.to_dense()"
        )
        super().__init__(f"{name} has no kernel{source}. {remedy}, or keep this part of the program outside jaten.")


class MissingGradientError(JatenError, NotImplementedError):
    """A gradient was asked of a random op that has none."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} draws random numbers, so its gradient cannot be derived from its kernel, which would draw others."
            f" Register one with `jaten_ops.gradient({name.removeprefix('jaten::')!r})`, from the op's results."
        )


class GradientRegistrationError(JatenError, ValueError):
    """A gradient was given to an operator whose gradients are not jaten's."""

    def __init__(self, name: str, owner: str) -> None:
        remedy = (
            "register it with that library, as with `torch.library.register_autograd`"
            if owner == "its library"
            else "make an operator of your own with `jaten_ops.op` that computes the same, and give it this gradient"
        )
        super().__init__(
            f"{name}: its gradient is that of {owner}, in compiled graphs and on the device too, where no other"
            f" is asked. Instead, {remedy}, or write a `torch.autograd.Function` around it."
        )


class InvalidSchemaError(JatenError, ValueError):
    """A user's operator that cannot be registered as it is written."""

    def __init__(self, schema: str, problem: str, remedy: str) -> None:
        super().__init__(f"{schema}: {problem}. To mend it: {remedy}.")


class UnsupportedInputError(JatenError, TypeError):
    """A tensor or value that has no counterpart in JAX."""

    def __init__(self, what: str, got: object, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}.")


class DeviceSlotError(JatenError, RuntimeError):
    """The one PrivateUse1 slot of the process belongs to another backend."""

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"the device 'jax' is not available: the PrivateUse1 slot of this process is taken by {owner!r}."
            " Plain tensors and torch.compile(backend='jaten') work as usual;"
            " to have the device, import jaten_ops before that backend."
        )


class KernelError(JatenError, RuntimeError):
    """A kernel failed while a graph was compiled; the cause is attached."""

    def __init__(self, name: str, arguments: str, source: str, cause: Exception) -> None:
        super().__init__(f"{name}({arguments}){source}: {type(cause).__name__}: {cause}")


class KernelResultError(JatenError, RuntimeError):
    """A kernel returned something else than the op's schema or fake says."""

    def __init__(self, name: str, got: object, expected: object, source: str = "", by: str = "fake") -> None:
        remedy = (
            "mend the kernel, or give the op a fake with `jaten_ops.fake`"
            if by == "fake"
            else "return an array for a Tensor, a tuple of as many for several results, a list for a Tensor[]"
        )
        of = " (shapes and dtypes)" if by == "fake" else ""
        super().__init__(
            f"{name}{source}: its kernel returned {got}, its {by} says {expected}{of}."
            f" One of the two is wrong: {remedy}."
        )
