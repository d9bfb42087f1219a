"""The models of the test suite: small configurations of real architectures, with random weights.

Nothing is downloaded. A case says how to build the model for a dropout probability, how to make a batch of keyword
inputs, and which scalar is the loss; `test_models.py` says what must hold for each. Weights are drawn wider than the
libraries' defaults (0.02): with those, a network of width 32 is close to the identity, and its gradients would hardly
see an error in attention.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

Inputs = dict[str, Tensor]

VOCABULARY = 64
LENGTH = 16
WIDTH = 32
CLASSES = 10
WEIGHT_STD = 0.2


@dataclass(frozen=True)
class ModelCase:
    """One row: `build(dropout)` gives the model, `inputs(batch_size)` its keyword arguments."""

    name: str
    build: Callable[[float], nn.Module]
    inputs: Callable[[int], Inputs]
    loss: Callable[[Any, Inputs], Tensor]
    learning_rate: float = 0.05
    seed: int = 0
    # Settings of torch._dynamo.config under which the model is captured at all.
    dynamo: dict[str, Any] = field(default_factory=dict)


# ---- models written in plain torch ----------------------------------------------------------------


class MLP(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(24, WIDTH),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class LSTMTagger(nn.Module):
    """A label for each position, by a bidirectional two-layer LSTM."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)


class Translator(nn.Module):
    """`nn.Transformer` between an embedding and a linear head, with a causal target and padded sources."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.transformer = nn.Transformer(
            WIDTH, 4, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=64, dropout=dropout, batch_first=True
        )
        self.transformer.encoder.use_nested_tensor = False  # nested tensors are another subject
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor, source_padding: Tensor) -> Tensor:
        causal = self.transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        states = self.transformer(
            self.embedding(source) + self.position,
            self.embedding(target) + self.position,
            tgt_mask=causal.to(self.position.dtype),
            src_key_padding_mask=source_padding,
            memory_key_padding_mask=source_padding,
            tgt_is_causal=True,
        )
        return self.head(states)


class ConvBlock(nn.Sequential):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1),
            nn.GroupNorm(4, channels_out),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """Two levels down (max, average pooling) and up (transposed convolution, bilinear), with skip connections."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = ConvBlock(3, 8), ConvBlock(8, 16), ConvBlock(16, 32)
        self.dropout = nn.Dropout2d(dropout)
        self.expand2 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.up2, self.up1 = ConvBlock(32, 16), ConvBlock(24, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.down1(image)
        middle = self.down2(F.max_pool2d(fine, 2))
        coarse = self.dropout(self.bottom(F.avg_pool2d(middle, 2)))
        middle = self.up2(torch.cat([middle, self.expand2(coarse)], dim=1))
        middle = F.interpolate(middle, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.up1(torch.cat([fine, middle], dim=1)))


class Recommender(nn.Module):
    """DLRM (Naumov et al., 2019): embedding bags and a dense tower, their dot products, a tower that gives a logit."""

    pairs: Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(VOCABULARY, 16, mode=mode) for mode in ("sum", "mean", "max"))
        self.dense = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 16), nn.ReLU())
        pairs = torch.triu_indices(4, 4, offset=1)
        self.register_buffer("pairs", pairs)  # as a buffer it moves with the model
        self.top = nn.Sequential(
            nn.Linear(16 + pairs.shape[1], WIDTH), nn.ReLU(), nn.Dropout(dropout), nn.Linear(WIDTH, 1)
        )

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        bottom = self.dense(dense)
        features = torch.stack([bottom, *(bag(ids[i], offsets[i]) for i, bag in enumerate(self.bags))], dim=1)
        products = features @ features.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, crossed], dim=1)).squeeze(1)


# ---- the real library, in small -------------------------------------------------------------------


def bert(dropout: float) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=WEIGHT_STD,
    )
    return transformers.BertForMaskedLM(config)


def gpt2(dropout: float) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        initializer_range=WEIGHT_STD,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama(dropout: float) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        attention_dropout=dropout,
        initializer_range=WEIGHT_STD,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def t5(dropout: float) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        dropout_rate=dropout,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def vit(dropout: float) -> nn.Module:
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=WEIGHT_STD,
        num_labels=CLASSES,
    )
    return transformers.ViTForImageClassification(config)


def resnet(dropout: float) -> nn.Module:
    del dropout  # it has none
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=CLASSES
    )
    return transformers.ResNetForImageClassification(config)


def mobilenet_v2(dropout: float) -> nn.Module:
    config = transformers.MobileNetV2Config(
        image_size=32,
        depth_multiplier=0.1,
        expand_ratio=2.0,
        output_stride=8,  # dilation in place of the later strides: the last images keep enough pixels for BatchNorm
        finegrained_output=False,
        classifier_dropout_prob=dropout,
        initializer_range=WEIGHT_STD,
        num_labels=CLASSES,
    )
    model = transformers.MobileNetV2ForImageClassification(config)
    blocks = model.mobilenet_v2.layer
    repeated = (4, 5, 7, 8, 11, 12, 14)  # each as the one before it
    model.mobilenet_v2.layer = nn.ModuleList(block for i, block in enumerate(blocks) if i not in repeated)
    return model


def convnext(dropout: float) -> nn.Module:
    config = transformers.ConvNextConfig(
        hidden_sizes=[16, 32],
        depths=[1, 2],
        num_stages=2,
        patch_size=4,
        drop_path_rate=dropout,
        layer_scale_init_value=0.5,  # at the default 1e-6 the blocks contribute nothing
        initializer_range=WEIGHT_STD,
        num_labels=CLASSES,
    )
    return transformers.ConvNextForImageClassification(config)


# ---- inputs and losses ----------------------------------------------------------------------------


def tokens(batch_size: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch_size, LENGTH))


def causal_text(batch_size: int) -> Inputs:
    text = tokens(batch_size)
    return {"input_ids": text, "labels": text}


def masked_text(batch_size: int) -> Inputs:
    """Token ids, padded in the first row, and labels that ignore (-100) two positions out of three."""
    mask = torch.ones(batch_size, LENGTH, dtype=torch.int64)
    mask[0, LENGTH // 2 :] = 0
    labels = tokens(batch_size)
    labels[:, torch.arange(LENGTH) % 3 != 0] = -100
    return {"input_ids": tokens(batch_size), "attention_mask": mask, "labels": labels}


def text_pair(batch_size: int) -> Inputs:
    return {"input_ids": tokens(batch_size), "labels": tokens(batch_size)}


def images(batch_size: int) -> Inputs:
    """Images and one class for each."""
    return {"pixel_values": torch.randn(batch_size, 3, 32, 32), "labels": torch.randint(CLASSES, (batch_size,))}


def library_loss(output: Any, inputs: Inputs) -> Tensor:
    """transformers computes the loss in the model, from the labels."""
    return output.loss


def label_loss(output: Tensor, inputs: Inputs) -> Tensor:
    """Cross entropy against fixed classes; logits have the classes last, except those of a segmentation (NCHW)."""
    logits = output.flatten(0, -2) if output.dim() < 4 else output.movedim(1, -1).flatten(0, -2)
    labels = torch.arange(logits.shape[0], device=logits.device) * 7 % logits.shape[-1]
    return F.cross_entropy(logits, labels)


def click_loss(output: Tensor, inputs: Inputs) -> Tensor:
    clicks = (torch.arange(len(output), device=output.device) % 2).to(output.dtype)
    return F.binary_cross_entropy_with_logits(output, clicks)


def bag_inputs(batch_size: int) -> Inputs:
    """Dense features, and three tables' bags of ids with `offsets`; bag 1 of each table is empty."""
    sizes = torch.arange(batch_size) % 3 * 2
    sizes[0] = 3
    sizes[1] = 0
    offsets = (sizes.cumsum(0) - sizes).expand(3, -1).contiguous()
    ids = torch.randint(VOCABULARY, (3, int(sizes.sum())))
    return {"dense": torch.randn(batch_size, 8), "ids": ids, "offsets": offsets}


def translation_inputs(batch_size: int) -> Inputs:
    padding = torch.zeros(batch_size, LENGTH, dtype=torch.bool)
    padding[0, LENGTH // 2 :] = True
    return {"source": tokens(batch_size), "target": tokens(batch_size), "source_padding": padding}


# ---- the table ------------------------------------------------------------------------------------

CASES = [
    ModelCase("mlp", MLP, lambda n: {"x": torch.randn(n, 24)}, label_loss),
    ModelCase("bert", bert, masked_text, library_loss),
    ModelCase("gpt2", gpt2, causal_text, library_loss),
    ModelCase("llama", llama, causal_text, library_loss),
    ModelCase("t5", t5, text_pair, library_loss),
    ModelCase("vit", vit, images, library_loss),
    ModelCase("resnet", resnet, images, library_loss),
    # With fifty layers, some activation may lie so close to a kink of relu6 that rounding decides on its gradient, and
    # the next step is chaos for eager too: with this seed and rate none does.
    ModelCase("mobilenet_v2", mobilenet_v2, images, library_loss, learning_rate=1e-3, seed=5),
    ModelCase("convnext", convnext, images, library_loss),
    # Dynamo leaves nn.LSTM to eager unless told otherwise, and then unrolls its steps: a short text will do.
    ModelCase("lstm", LSTMTagger, lambda n: {"tokens": tokens(n)[:, :6]}, label_loss, dynamo={"allow_rnn": True}),
    ModelCase("transformer", Translator, translation_inputs, label_loss),
    ModelCase("unet", UNet, lambda n: {"image": torch.randn(n, 3, 32, 32)}, label_loss),
    ModelCase("dlrm", Recommender, bag_inputs, click_loss),
]

BY_NAME = {case.name: case for case in CASES}
