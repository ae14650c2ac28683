"""A small decoder-only transformer, written to be read.

Pre-norm blocks of attention and a two-layer perceptron, learned positions, tied input and output embeddings.
Rows may be padded on the left (prompts) and on the right (answers); real tokens never see padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a transformer: tokens, longest row, width of a token's vector, blocks and heads."""

    vocabulary_size: int
    context_length: int
    width: int = 64
    num_blocks: int = 2
    num_heads: int = 4


class KeyValueCache:
    """Keys and values that a block has computed, so that each new token costs one token's work."""

    def __init__(self, num_rows: int, num_tokens: int, config: ModelConfig, device: torch.device) -> None:
        shape = (num_rows, config.num_heads, num_tokens, config.width // config.num_heads)
        self._keys = torch.zeros(shape, device=device)
        self._values = torch.zeros(shape, device=device)
        self._length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new tokens' keys and values; return those of all tokens so far."""
        start, self._length = self._length, self._length + keys.shape[2]
        self._keys[:, :, start : self._length] = keys
        self._values[:, :, start : self._length] = values
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]


class Block(nn.Module):
    """Attention, then a perceptron, each added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.perceptron_norm = nn.LayerNorm(config.width)
        self.perceptron_in = nn.Linear(config.width, 4 * config.width)
        self.perceptron_out = nn.Linear(4 * config.width, config.width)

    def forward(self, hidden: Tensor, visible: Tensor, cache: KeyValueCache | None) -> Tensor:
        hidden = hidden + self._attend(self.attention_norm(hidden), visible, cache)
        added: Tensor = self.perceptron_out(gelu(self.perceptron_in(self.perceptron_norm(hidden))))
        return hidden + added

    def _attend(self, hidden: Tensor, visible: Tensor, cache: KeyValueCache | None) -> Tensor:
        rows, tokens, width = hidden.shape
        heads = self.query_key_value(hidden).view(rows, tokens, 3 * self.num_heads, -1).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        if cache is not None:
            key, value = cache.extend(key, value)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=visible)
        attended: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return attended


class Transformer(nn.Module):
    """Token ids to one vector a token; weights follow from the seed alone, whatever ran before."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.position_embedding = nn.Embedding(config.context_length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.final_norm = nn.LayerNorm(config.width)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deviation = 0.02 if "embedding" in name else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, deviation, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, caches: list[KeyValueCache] | None = None
    ) -> Tensor:
        """Vectors of shape (rows, tokens, width) for the last `tokens` columns of `attention_mask`.

        `input_ids` is (rows, tokens), `attention_mask` (rows, all tokens so far) with 1 for a real token; the
        two have the same width unless `caches` hold what came before.
        """
        num_new = input_ids.shape[1]
        positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -num_new:]
        visible = _visible_keys(attention_mask)[:, None, -num_new:]
        hidden = self.token_embedding(input_ids) + self.position_embedding(positions)
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, visible, caches[index] if caches else None)
        normed: Tensor = self.final_norm(hidden)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary for the token after each vector."""
        return linear(hidden, self.token_embedding.weight)


class ValueModel(nn.Module):
    """A transformer with one number a token on top: how much reward is still to come."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        self.transformer = Transformer(config, seed)
        self.value = nn.Linear(config.width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Values of shape (rows, tokens)."""
        values: Tensor = self.value(self.transformer(input_ids, attention_mask)).squeeze(-1)
        return values


def _visible_keys(attention_mask: Tensor) -> Tensor:
    """Which key each query may see, (rows, queries, keys): real and not later; padding sees only itself."""
    num_tokens = attention_mask.shape[1]
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=attention_mask.device).tril()
    itself = torch.eye(num_tokens, dtype=torch.bool, device=attention_mask.device)
    return (causal & attention_mask.bool()[:, None, :]) | itself
