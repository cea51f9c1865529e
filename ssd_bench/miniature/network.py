"""The trainable decoder: weights stacked over blocks, sublayers that can be dropped, exits; export as a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssd_bench.miniature.recipe import Size


class Network(nn.Module):
    """A Llama decoder whose kinds of weights are one tensor each, [L, out, in], so that an optimiser step is few calls.

    Args:
        size: the decoder's.
        seed: of the initial weights.
    """

    def __init__(self, size: Size, seed: int):
        super().__init__()
        self.size = size
        self.cos: Tensor
        self.sin: Tensor
        rng = torch.Generator().manual_seed(seed)
        n, d, inner = size.n_layers, size.width, size.intermediate

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=rng) * std)

        out_std = 0.02 / math.sqrt(2 * n)  # residual branches start small, by depth (GPT-2)
        self.embedding = normal(size.vocab_size, d, std=0.02)
        self.qkv = normal(n, 3 * d, d, std=0.02)
        self.out = normal(n, d, d, std=out_std)
        self.gate_up = normal(n, 2 * inner, d, std=0.02)
        self.down = normal(n, d, inner, std=out_std)
        self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(n, d)), nn.Parameter(torch.ones(n, d))
        self.norm = nn.Parameter(torch.ones(d))
        half = d // size.n_heads // 2
        angles = torch.arange(size.context).outer(size.rope_base ** -(torch.arange(half) / half))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def matrices(self) -> list[Tensor]:
        """The blocks' matrices."""
        return [self.qkv, self.out, self.gate_up, self.down]

    def vectors(self) -> list[Tensor]:
        """All other parameters."""
        return [self.embedding, self.attn_norm, self.mlp_norm, self.norm]

    def blocks(self) -> list[tuple[Tensor, ...]]:
        """Per block: attention norm, q k v, output; MLP norm, gate and up, down."""
        kinds = (self.attn_norm, self.qkv, self.out, self.mlp_norm, self.gate_up, self.down)
        return list(zip(*(kind.unbind(0) for kind in kinds)))

    def forward(self, tokens: Tensor, dropped: Collection[int] = (), exit_after: int | None = None) -> list[Tensor]:
        """Streams before the final norm.

        Args:
            tokens: [B, T] ids from position 0 on.
            dropped: sublayers, in [0, 2L), that do not run.
            exit_after: number of blocks after which the stream is returned as well.

        Returns:
            The last stream [B, T, d], followed by the exit's if one is asked for.
        """
        stream, left = F.embedding(tokens, self.embedding), None
        for i, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(self.blocks()):
            if i == exit_after:
                left = stream
            if 2 * i not in dropped:
                stream = stream + self._attention(stream, attn_norm, qkv, out)
            if 2 * i + 1 not in dropped:
                stream = stream + self.mlp(stream, mlp_norm, gate_up, down)
        return [stream] if left is None else [stream, left]

    def logits(self, stream: Tensor) -> Tensor:
        """Final norm and the tied head: [..., d] -> [..., V]."""
        return F.linear(self.normed(stream, self.norm), self.embedding)

    def _attention(self, stream: Tensor, norm: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
        t = stream.shape[1]
        query, key, value = self.heads(stream, norm, qkv, self.cos[:t], self.sin[:t])
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.linear(attended.transpose(1, 2).flatten(2), out)

    def mlp(self, stream: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """What an MLP adds to the stream."""
        gate, up = F.linear(self.normed(stream, norm), gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, down)

    def heads(self, stream: Tensor, norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Rotated queries and keys, and values, [B, H, T, D] each, of streams [B, T, d] with rotary tables [T, D]."""
        b, t, _ = stream.shape
        joined = F.linear(self.normed(stream, norm), qkv).view(b, t, 3, self.size.n_heads, -1)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        return _rotated(query, cos, sin), _rotated(key, cos, sin), value

    def normed(self, stream: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""
        return F.rms_norm(stream, weight.shape, weight, self.size.eps)

    @classmethod
    def load(cls, folder: Path, size: Size) -> Network:
        """The weights that `save` wrote, in float32."""
        from safetensors.torch import load_file

        tensors, network = load_file(folder / "model.safetensors"), cls(size, seed=0)
        with torch.no_grad():
            for name, parameter in network._exported().items():
                parameter.copy_(tensors[name])
        return network

    def save(self, folder: Path, bos: int, eos: int) -> None:
        """Weights in bfloat16 and config, as a Hugging Face Llama checkpoint."""
        from safetensors.torch import save_file
        from transformers import LlamaConfig

        size = self.size
        rounded = {k: v.detach().to("cpu", torch.bfloat16).clone() for k, v in self._exported().items()}
        save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
        LlamaConfig(
            vocab_size=size.vocab_size, hidden_size=size.width, intermediate_size=size.intermediate,
            num_hidden_layers=size.n_layers, num_attention_heads=size.n_heads, num_key_value_heads=size.n_heads,
            max_position_embeddings=size.context, rms_norm_eps=size.eps, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": size.rope_base},
            bos_token_id=bos, eos_token_id=eos, pad_token_id=eos, dtype="bfloat16", architectures=["LlamaForCausalLM"],
        ).save_pretrained(folder)  # fmt: skip

    def _exported(self) -> dict[str, Tensor]:
        """Views of the weights under their names in a Hugging Face Llama checkpoint."""
        tensors: dict[str, Tensor] = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for i in range(self.size.n_layers):
            at = f"model.layers.{i}."
            for name, part in zip("qkv", self.qkv[i].chunk(3)):
                tensors[f"{at}self_attn.{name}_proj.weight"] = part
            for name, part in zip(("gate", "up"), self.gate_up[i].chunk(2)):
                tensors[f"{at}mlp.{name}_proj.weight"] = part
            tensors[f"{at}self_attn.o_proj.weight"], tensors[f"{at}mlp.down_proj.weight"] = self.out[i], self.down[i]
            tensors[f"{at}input_layernorm.weight"] = self.attn_norm[i]
            tensors[f"{at}post_attention_layernorm.weight"] = self.mlp_norm[i]
        return tensors


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin
