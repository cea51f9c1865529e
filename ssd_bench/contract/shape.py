"""The sizes of a decoder that decide its speed and memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder of the llama, qwen2 or qwen3 family; biases and norms are not counted.

    Attributes:
        context: longest sequence in tokens; None: unknown.
    """

    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    tied: bool = False
    context: int | None = None

    @property
    def attn_params(self) -> int:
        """Weights of one attention sublayer: query, key, value and output projections."""
        return self.width * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)

    @property
    def mlp_params(self) -> int:
        """Weights of one MLP sublayer: gate, up and down projections."""
        return 3 * self.width * self.intermediate

    @property
    def cache_row(self) -> int:
        """Elements of one position's keys and values in one block."""
        return 2 * self.n_kv_heads * self.head_dim

    @property
    def head_params(self) -> int:
        """Weights of the LM head."""
        return self.vocab_size * self.width

    @property
    def n_params(self) -> int:
        """Number of weights with the embedding; a tied LM head is the embedding and counts once."""
        embeddings = (1 if self.tied else 2) * self.head_params
        return self.n_layers * (self.attn_params + self.mlp_params) + embeddings


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a model against which settings are checked.

    Attributes:
        name: the model's name in `conf/model`.
        n_layers: L, number of blocks (2L sublayers).
        n_params: number of parameters.
        context: longest sequence, prompt and output together, in tokens.
        vocab_size: number of token ids.
    """

    name: str
    n_layers: int
    n_params: int
    context: int
    vocab_size: int
