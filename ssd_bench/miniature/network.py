"""The trainable decoder: weights stacked over blocks, sublayers that can be dropped, exits; export as a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssd_bench.miniature.recipe import Size

BLOCK = 256  # queries that attend at once
# Scales of the first weights. A token's embedding outweighs what the first updates of a training write to the stream;
# with embeddings of GPT-2's 0.02, one step of Muon moves each sublayer's output by half of their length.
EMBEDDED = 0.25
SHARED = 2.825  # first entry of all embeddings
NOTED, PASSED = 0.75, 0.2  # outputs of the heads that look back, and of those that look for the same
SHARP = 2.4  # queries and keys of the latter
NOTE_WIDTH, FAST, SLOW = 20, 8, 12  # of heads of 64: entries of a note, first pairs that tell positions, or do not
MATCHING = (1, 9)  # blocks whose first head looks for the same
PERIODS = (2, 4, 5, 10, 20, 50, 100, 200)  # of the circles on which numbers stand
RADIUS = 0.7


class Network(nn.Module):
    """A Llama decoder whose kinds of weights are one tensor each, [L, out, in], so that an optimiser step is few calls.

    Args:
        size: the decoder's.
        seed: of the initial weights.
        compute: type in which `forward` runs; the weights are float32.
        copying: whether it begins with heads that copy what stood before.
        numbers: token id -> number, of tokens that begin with embeddings that tell it, where it begins so.
    """

    def __init__(
        self, size: Size, seed: int, compute: torch.dtype = torch.float32, copying: bool = False,
        numbers: Mapping[int, int] = MappingProxyType({}),
    ):  # fmt: skip
        super().__init__()
        self.size, self.compute = size, compute
        self.cos: Tensor
        self.sin: Tensor
        rng = torch.Generator().manual_seed(seed)
        n, d, inner = size.n_layers, size.width, size.intermediate

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=rng) * std)

        out_std = 0.02 / math.sqrt(2 * n)  # residual branches start small, by depth (GPT-2)
        embedded = EMBEDDED if copying else 0.02
        self.embedding = normal(size.vocab_size, d, std=embedded)
        self.qkv = normal(n, 3 * d, d, std=0.02)
        self.out = normal(n, d, d, std=out_std)
        self.gate_up = normal(n, 2 * inner, d, std=0.02)
        self.down = normal(n, d, inner, std=out_std)
        self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(n, d)), nn.Parameter(torch.ones(n, d))
        self.norm = nn.Parameter(torch.full((d,), 0.02 / embedded))  # logits as small as GPT-2's
        half = d // size.n_heads // 2
        pace = size.rope_base ** -(torch.arange(half) / half)
        angles = torch.arange(size.context).outer(pace)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        if copying:
            with torch.no_grad():
                self._begin_to_copy(pace, rng, numbers)

    def _begin_to_copy(self, pace: Tensor, rng: torch.Generator, numbers: Mapping[int, int]) -> None:
        """Start with heads that find what followed the last two tokens when they stood before, and write it.

        From small random weights a model of this size and depth is far into its training before it copies a word. Here
        the first block's heads note, for every token, which ones stood before it; the first heads of further blocks
        look for where these notes are what they themselves have seen last, and pass on the token that is there
        (induction heads: Olsson et al. 2022, arXiv:2209.11895). Those are many, so that each can be spared.
        """
        d, width = self.size.width, self.size.width // self.size.n_heads
        code = NOTE_WIDTH * width // 64
        basis = _orthogonal(d, rng)
        read, notes = basis[:code], [basis[(i + 1) * code : (i + 2) * code] for i in range(2)]
        for token, number in numbers.items():
            self._stand_on_circles(token, number, basis[3 * code :])
        self.embedding[:, 0] = SHARED
        for head, note in enumerate(notes[: self.size.n_heads]):
            self._look_back(slice(head * width, (head + 1) * width), head + 1, pace, read, note)
        # pairs that hardly turn within a prompt, so that a match counts at any distance
        first = SLOW * (width // 2) // 32
        slow = [*range(first, width // 2), *range(width // 2 + first, width)]
        wanted, held = torch.cat([read, notes[0]])[: len(slow)], torch.cat(notes)[: len(slow)]
        for layer in range(*MATCHING):
            if layer < self.size.n_layers:
                query, key = torch.zeros(2, width, d).unbind(0)
                passed = _orthogonal(d, rng)[:width]
                query[slow[: len(wanted)]], key[slow[: len(held)]] = SHARP * wanted, SHARP * held
                self._set_head(layer, slice(0, width), (query, key, passed), PASSED * passed.T)

    def _stand_on_circles(self, token: int, number: int, unread: Tensor) -> None:
        """Give a number's embedding its place on circles of several periods, in directions that no head reads yet.

        A sum is then a turn, the same for all numbers, as in large models (Kantamneni & Tegmark 2025,
        arXiv:2502.00873); of random embeddings every sum is a fact of its own.
        """
        turns = [2 * math.pi * number / period for period in PERIODS[: len(unread) // 2]]
        place = torch.tensor([part(turn) for turn in turns for part in (math.cos, math.sin)])
        plane = unread[: len(place)]
        self.embedding[token] += (RADIUS * place - plane @ self.embedding[token]) @ plane

    def _set_head(self, layer: int, rows: slice, parts: tuple[Tensor, Tensor, Tensor], out: Tensor) -> None:
        for i, made in enumerate(parts):
            self.qkv[layer, i * self.size.width : (i + 1) * self.size.width][rows] = made
        self.out[layer][:, rows] = out

    def _look_back(self, rows: slice, back: int, pace: Tensor, read: Tensor, note: Tensor) -> None:
        """Make a head of the first block attend `back` positions before its own, read a token there and note it.

        Query and key are the constant that all embeddings share, the key turned on by so many positions; the fastest
        pairs of the rotary embedding tell one position from the next.
        """
        d, half = self.size.width, len(pace)
        query, key, value = torch.zeros(3, 2 * half, d).unbind(0)
        out = torch.zeros(d, 2 * half)
        for pair in range(min(FAST, half)):
            query[pair, 0] = 1.0
            key[pair, 0] = (pace[pair] * back).cos()
            key[pair + half, 0] = (pace[pair] * back).sin()
        value[: len(read)] = read
        out[:, : len(note)] = NOTED * note.T
        self._set_head(0, rows, (query, key, value), out)

    def matrices(self) -> list[Tensor]:
        """The blocks' matrices."""
        return [self.qkv, self.out, self.gate_up, self.down]

    def vectors(self) -> list[Tensor]:
        """All other parameters."""
        return [self.embedding, self.attn_norm, self.mlp_norm, self.norm]

    def blocks(self) -> list[tuple[Tensor, ...]]:
        """Per block: attention norm, q k v, output; MLP norm, gate and up, down."""
        kinds = (self.attn_norm, self.qkv, self.out, self.mlp_norm, self.gate_up, self.down)
        return list(zip(*(kind.to(self.compute).unbind(0) for kind in kinds)))

    def forward(self, tokens: Tensor, dropped: Collection[int] = (), exit_after: int | None = None) -> list[Tensor]:
        """Streams before the final norm.

        Args:
            tokens: [B, T] ids from position 0 on.
            dropped: sublayers, in [0, 2L), that do not run.
            exit_after: number of blocks after which the stream is returned as well.

        Returns:
            The last stream [B, T, d], followed by the exit's if one is asked for.
        """
        stream, left = F.embedding(tokens, self.embedding.to(self.compute)), None
        cos, sin = (table[: tokens.shape[1]].to(self.compute) for table in (self.cos, self.sin))
        for i, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(self.blocks()):
            if i == exit_after:
                left = stream
            if 2 * i not in dropped:
                stream = stream + self._attention(stream, attn_norm, qkv, out, cos, sin)
            if 2 * i + 1 not in dropped:
                stream = stream + self.mlp(stream, mlp_norm, gate_up, down)
        return [stream] if left is None else [stream, left]

    def logits(self, stream: Tensor) -> Tensor:
        """Final norm and the tied head: [..., d] -> [..., V]."""
        return F.linear(self.normed(stream, self.norm.to(stream.dtype)), self.embedding.to(stream.dtype))

    def _attention(self, stream: Tensor, norm: Tensor, qkv: Tensor, out: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attended = _causal(*self.heads(stream, norm, qkv, cos, sin))
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


def _orthogonal(d: int, rng: torch.Generator) -> Tensor:
    """Orthonormal rows [d - 1, d] that do not read what all tokens share."""
    return F.pad(torch.linalg.qr(torch.randn(d - 1, d - 1, generator=rng))[0], (1, 0))


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention, [B, H, T, D], in blocks of queries, each over the keys up to its end.

    As plain products it takes half the time of PyTorch's attention for CPUs, forth and back, in bfloat16.
    """
    query, t = query * query.shape[-1] ** -0.5, query.shape[2]
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=query.device).triu_(1)
    parts = []
    for start in range(0, t, BLOCK):
        end = min(start + BLOCK, t)
        scores = query[:, :, start:end] @ key[:, :, :end].mT
        scores[..., start:].masked_fill_(later[: end - start, : end - start], float("-inf"))
        parts.append(scores.softmax(-1) @ value[:, :, :end])
    return torch.cat(parts, 2)
