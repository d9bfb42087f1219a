"""The statements that programs are drawn from.

In a template `{v}` and `{w}` are tensors, `{i}` and `{j}` dimensions of the first, `{k}` an index along `{i}` and `{c}`
a number. A statement that torch refuses on the CPU is drawn again.
"""

from __future__ import annotations

VIEWS = (
    "{v}.transpose({i}, {j})", "{v}.mT", "{v}.T", "{v}.diagonal(0, {i}, {j})", "{v}.movedim({i}, {j})",
    "{v}.select({i}, {k})", "{v}.narrow({i}, {k}, 1)", "{v}.narrow({i}, 0, {k} + 1)", "{v}[{k}:]", "{v}[..., 1:]",
    "{v}[:, 1:]", "{v}[::2]", "{v}[..., ::2]", "{v}.chunk(2, {i})[0]", "{v}.split(1, {i})[-1]", "{v}.unbind({i})[0]",
    "{v}.tensor_split(2, {i})[1]", "{v}.flatten()", "{v}.ravel()", "{v}.squeeze({i})", "{v}.unsqueeze({i})",
    "{v}.reshape(-1)", "{v}.view(-1)", "{v}.view({v}.shape[::-1])", "{v}.reshape({v}.shape[::-1])",
    "{v}.expand(2, *{v}.shape)", "{v}.expand_as({w})", "{v}.view_as({v})", "torch.atleast_2d({v})", "{v}.real",
    "{v}.contiguous()", "{v}.to(torch.float32)", "{v}.detach()",
)  # fmt: skip
RESULTS = (
    "{v} * {c}", "{v} + {w}", "{v} * {w}", "{v}.sin()", "torch.tanh({v})", "{v}.relu()", "{v}.abs()", "{v}.clone()",
    "torch.where({v} > 0, {v}, {w})", "{v}.sum(0)", "{v}.sum()", "{v}.mean(-1, keepdim=True)", "{v}.softmax(-1)",
    "{v}.cumsum(0)", "{v} @ {w}", "torch.cat([{v}, {w}])", "torch.stack([{v}, {v}], -1)", "{v}.flip(0)",
    "{v}.roll(1, 0)", "{v}.exp().clamp(max=3)", "{v}[torch.tensor([0, 0], device={v}.device)]", "{v}.max(0).values",
    "{v}.sort(-1).values", "{v}.to(torch.float64)", "torch.zeros_like({v})", "{v}.new_ones({v}.shape)",
    "torch.empty_like({v}).fill_({c})", "{v}.masked_fill({v} < 0, {c})", "{v}.tril()", "{v}.prod(-1)", "{v}.norm()",
    "{v}.gather(-1, torch.zeros({v}.shape, dtype=torch.int64, device={v}.device))", "{v}.var(0)",
    "torch.nn.functional.pad({v}, (1, 0))", "torch.einsum('...i,...i->...', {v}, {v})", "{v}.T.mul({c})",
)  # fmt: skip
WRITES = (
    "{v}.mul_({c})", "{v}.add_({w})", "{v}.mul_({w})", "{v}.sub_({w})", "{v}.copy_({w})", "{v}.zero_()",
    "{v}.fill_({c})", "{v}.sin_()", "{v}.relu_()", "{v}.neg_()", "{v}.clamp_(min={c})", "{v}.lerp_({w}, 0.3)",
    "{v}.addcmul_({w}, {w}, value={c})", "{v}.masked_fill_({v} > 0, {c})", "{v}.tril_()", "{v}.cumsum_(0)",
    "{v}[0] = {c}", "{v}[..., -1] = {w}", "{v}[0] = {v}[-1]", "{v}[{v} > 0] = 0.0",
    "{v}[torch.tensor([0], device={v}.device)] = {c}", "{v}.diagonal().add_({c})", "{v}[::2].mul_({c})",
    "{v}.index_add_(0, torch.tensor([0, 0], device={v}.device), {w})",
    "{v}.index_fill_(0, torch.tensor([0], device={v}.device), {c})",
    "{v}.scatter_(-1, torch.zeros({v}.shape, dtype=torch.int64, device={v}.device), {c})", "{v}.detach().mul_({c})",
)  # fmt: skip
OUT = "torch.add({v}, {c}, out={w})"
"""A write to a tensor of the same shape: with another ATen warns, and makes it anew."""
IN_PLACE_VIEWS = (
    "{v}.t_()", "{v}.unsqueeze_({i})", "{v}.squeeze_()", "{v}.transpose_({i}, {j})", "{v}.swapaxes_({i}, {j})",
)  # fmt: skip
