"""The accelerator "jax" of Lightning's `Trainer`. Needs lightning, of the extra `lightning`."""

from __future__ import annotations

from typing import Any

import torch

from .errors import UnsupportedInputError

try:
    from lightning import Trainer
    from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
    from lightning.pytorch.plugins.precision import MixedPrecision
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise ImportError("jaten_ops.lightning needs lightning. Fix: pip install 'jaten-ops[lightning]'") from error


class JaxAccelerator(Accelerator):
    """The device `jax` as an accelerator of Lightning, one device of a process.

    The import of `jaten_ops.lightning` registers it, so that its name is enough: `Trainer(accelerator="jax")`. Tensors
    have the shapes and dtypes that they have on a CPU; `precision="bf16-mixed"` is autocast of the device, and
    `"16-mixed"` has a `torch.amp.GradScaler("jax")`.

    Raises:
        UnsupportedInputError: by the `Trainer`, for several devices, or a strategy for another device.

    Example:
        >>> Trainer(accelerator="jax", logger=False).accelerator.name()
        'jax'
    """

    def setup_device(self, device: torch.device) -> None:
        """Nothing: JAX starts the device with its first tensor."""

    def setup(self, trainer: Trainer) -> None:
        """Tells the strategy and the precision of the device: Lightning makes those of other accelerators for a CPU
        and for CUDA."""
        strategy, precision = trainer.strategy, trainer.precision_plugin
        if strategy.root_device.type != "jax":
            if not isinstance(strategy, SingleDeviceStrategy):
                expected = 'one for a device of "jax", such as Trainer\'s own. Fix: strategy="auto"'
                raise UnsupportedInputError("strategy", type(strategy).__name__, expected)
            (device,) = trainer._accelerator_connector._parallel_devices  # private: no public way to another device
            strategy._root_device = torch.device(device)
        if isinstance(precision, MixedPrecision) and precision.device != "jax":
            precision.device = "jax"
            precision.scaler = precision.scaler and torch.amp.GradScaler("jax")  # type: ignore[attr-defined]  # no stub

    def teardown(self) -> None:
        """Nothing: Lightning moves the module to the CPU, and its arrays are freed."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """The entries of `torch.jax.memory_stats`."""
        return torch.jax.memory_stats(device)  # type: ignore[attr-defined]  # set by jaten

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """The index of the device: `devices` is 1, or a list or string with an index."""
        if isinstance(devices, str):
            parts = [int(index) for index in devices.split(",") if index.strip()]
            devices = parts if "," in devices else parts[0]
        indices = devices if isinstance(devices, list) else list(range(devices))
        if len(indices) != 1:
            expected = "one, as 1 or [index]. Fix: for several devices see jaten_ops.distributed.distribute_batch"
            raise UnsupportedInputError("devices", repr(devices), expected)
        return indices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The devices with these indices."""
        return [torch.device("jax", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """One: Lightning starts a process for each device, and JAX has all devices in one process."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """True: JAX has a device on each machine."""
        return True

    @staticmethod
    def name() -> str:
        return "jax"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Puts it into a registry under its name."""
        accelerator_registry.register(cls.name(), cls, description=cls.__name__, override=True)


JaxAccelerator.register_accelerators(AcceleratorRegistry)
