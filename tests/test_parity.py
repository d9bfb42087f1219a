"""The judge can fail: each of these wrong records must be refused, and eager's own must pass."""

from collections.abc import Callable

import pytest
import torch

from .harness.parity import Record, Standard, violations
from .programs.models import BY_NAME
from .test_models import STATIC, eager_standard, make, observe

FIRST_WEIGHT = "gradient 0/down1.0.weight"


@pytest.fixture(scope="module")
def standard() -> Standard:
    return eager_standard("unet", "train", torch.float32, STATIC)


@pytest.fixture
def record(standard: Standard) -> Record:
    return {name: value.clone() for name, value in standard.eager.items()}


def test_eager_passes(record: Record, standard: Standard) -> None:
    assert not violations([record], standard)


def nudge_one_element(record: Record) -> None:
    record[FIRST_WEIGHT].view(-1)[0] += 1e-4 * record[FIRST_WEIGHT].abs().max()


def bias_all_elements(record: Record) -> None:
    record[FIRST_WEIGHT] *= 1 + 1e-5


def shift_the_loss(record: Record) -> None:
    record["loss/1"] += 1e-5


def lose_the_statistics(record: Record) -> None:
    """BatchNorm's running mean without the last step."""
    record["final/down1.1.running_mean"] *= 0.9


def count_one_batch_less(record: Record) -> None:
    record["final/down1.1.num_batches_tracked"] -= 1


def fill_a_zero_gradient(record: Record) -> None:
    """The bias in front of a normalisation has no effect, hence no gradient: what is there may be rounding only."""
    record["gradient 0/down1.3.bias"] += 1e-4


def lose_a_gradient(record: Record) -> None:
    del record[FIRST_WEIGHT]


def invent_a_gradient(record: Record) -> None:
    record["gradient 0/invented"] = torch.zeros(1)


def overflow(record: Record) -> None:
    record[FIRST_WEIGHT].view(-1)[0] = torch.nan


def change_the_dtype(record: Record) -> None:
    record[FIRST_WEIGHT] = record[FIRST_WEIGHT].double()


def change_the_shape(record: Record) -> None:
    record["loss/0"] = record["loss/0"].reshape(1)


@pytest.mark.parametrize(
    "spoil",
    [
        nudge_one_element,
        bias_all_elements,
        shift_the_loss,
        lose_the_statistics,
        count_one_batch_less,
        fill_a_zero_gradient,
        lose_a_gradient,
        invent_a_gradient,
        overflow,
        change_the_dtype,
        change_the_shape,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_refuses(spoil: Callable[[Record], None], record: Record, standard: Standard) -> None:
    spoil(record)
    assert violations([record], standard)


def test_refuses_a_little_more_in_all_tensors(record: Record, standard: Standard) -> None:
    """An error that is allowed in one tensor is refused in all of them."""
    for name in standard.errors:
        exact = standard.exact[0][name]
        record[name] = (exact + (record[name].double() - exact) * 1.8).to(record[name].dtype)
    (line,) = violations([record], standard)
    assert line.startswith("all tensors")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "dtype", "factor"),
    [
        ("mlp", torch.float32, 1.001),
        ("bert", torch.float32, 1.001),
        ("resnet", torch.float32, 1.001),
        ("llama", torch.bfloat16, 1.1),  # a thousandth is less than a rounding here
        ("convnext", torch.bfloat16, 1.1),
    ],
)
def test_refuses_a_wrong_weight(name: str, dtype: torch.dtype, factor: float) -> None:
    """The model with its last matrix off by a factor: an error of the model, rather than of one entry in its record."""
    case = BY_NAME[name]
    model, batches = make(case, dtype, STATIC)
    standard = eager_standard(name, "infer", dtype, STATIC)
    assert not violations([observe(case, "infer", model, batches)], standard)
    with torch.no_grad():
        [p for p in model.parameters() if p.dim() > 1][-1].mul_(factor)
    assert violations([observe(case, "infer", model, batches)], standard)
