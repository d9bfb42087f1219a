"""The accelerator "jax" of Lightning's Trainer, beside its CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import jaten_ops

lightning = pytest.importorskip("lightning", reason="needs lightning, of the extra `lightning`")

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
BATCHES = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)


class Module(lightning.LightningModule):
    """A network that keeps its losses, and the device and dtype of its last activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
        self.losses: list[float] = []
        self.seen: Any = None

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        result = self.network(batch[0])
        self.seen = result.device.type, result.dtype
        loss = torch.nn.functional.mse_loss(result.float(), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def _trainer(folder: Path, accelerator: str = "jax", **settings: Any) -> Any:
    assert jaten_ops.lightning.JaxAccelerator.is_available()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator=accelerator, default_root_dir=folder, **quiet, **settings)


def test_training_and_checkpoints(tmp_path: Path) -> None:
    expected, module = Module(), Module()
    _trainer(tmp_path, "cpu", max_epochs=2).fit(expected, BATCHES)
    trainer = _trainer(tmp_path, max_epochs=1, gradient_clip_val=1e6)
    trainer.fit(module, BATCHES)
    assert trainer.strategy.root_device == torch.device("jax", 0) and module.seen == ("jax", torch.float32)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = Module()
    _trainer(tmp_path, max_epochs=2).fit(again, BATCHES, ckpt_path=tmp_path / "last.ckpt")
    torch.testing.assert_close(module.losses + again.losses, expected.losses, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_mixed_precision_is_of_the_device(precision: str, dtype: torch.dtype, tmp_path: Path) -> None:
    module, trainer = Module(), _trainer(tmp_path, max_epochs=1, precision=precision)
    trainer.fit(module, BATCHES)
    assert module.seen == ("jax", dtype)
    scaler = trainer.precision_plugin.scaler
    assert scaler is None or (scaler._device == "jax" and scaler.is_enabled())


def test_devices() -> None:
    parse = jaten_ops.lightning.JaxAccelerator.parse_devices
    assert [parse(devices) for devices in (1, "1", [0], [1], "1,")] == [[0], [0], [0], [1], [1]]
    for several in (2, "2", [0, 1], "0,1", -1):
        with pytest.raises(jaten_ops.UnsupportedInputError, match=r"devices: got .*Fix"):
            parse(several)


def test_strategies_of_other_devices_are_refused() -> None:
    other = type("Other", (), {"root_device": torch.device("cpu")})()
    trainer = type("Trainer", (), {"strategy": other, "precision_plugin": None})
    with pytest.raises(jaten_ops.UnsupportedInputError, match="strategy: got Other"):
        jaten_ops.lightning.JaxAccelerator().setup(trainer)
