"""Sizes of a decoder: for predictions of its speed and memory, and for checks of settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder of the llama, qwen2 or qwen3 family, and its numbers of weights without biases and norms.

    Attributes:
        width: d, width of the residual stream.
        intermediate: width between the projections of an MLP.
        tied: whether LM head and embedding are one matrix.
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
        """Number of weights of one attention sublayer: query, key, value and output projections."""
        # query and output projections have n_heads heads, key and value projections n_kv_heads
        return self.width * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)

    @property
    def mlp_params(self) -> int:
        """Number of weights of one MLP sublayer: gate, up and down projections."""
        return 3 * self.width * self.intermediate

    @property
    def cache_row(self) -> int:
        """Number of cache elements per position and block: the keys and the values of all KV heads."""
        return 2 * self.n_kv_heads * self.head_dim

    @property
    def head_params(self) -> int:
        """Number of weights of the LM head."""
        return self.vocab_size * self.width

    @property
    def n_params(self) -> int:
        """Number of weights of all blocks, the embedding and the LM head; a tied matrix counts once."""
        embeddings = (1 if self.tied else 2) * self.head_params
        return self.n_layers * (self.attn_params + self.mlp_params) + embeddings


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a model that checks of settings need.

    Attributes:
        name: the model's name in `conf/model`.
        n_layers: L, number of blocks (2L sublayers).
        context: longest sequence, prompt and output together, in tokens.
    """

    name: str
    n_layers: int
    n_params: int
    context: int
    vocab_size: int
