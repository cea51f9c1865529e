"""Trainable decoder: weights stacked over blocks, sublayers that can be dropped, exits, and export as a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.miniature.recipe import Size

BLOCK = 256  # queries of one attention product
# Scales of the initial weights. A token's embedding must outweigh what the first updates write to the stream: with
# GPT-2's embeddings of 0.02, one step of Muon moves each sublayer's output by half the length of an embedding.
EMBEDDED = 0.25
SHARED = 2.825  # first entry of all embeddings
NOTED, COPIED = 0.75, 0.2  # scale of outputs: of heads that look back, and of induction heads
SHARP = 2.4  # scale of the queries and keys of induction heads
NOTE_WIDTH, FAST, SLOW = 20, 8, 12  # for heads of 64: entries of a note, number of fast pairs, first slow pair
MATCHING = (1, 9)  # blocks whose first head is an induction head
PERIODS = (2, 4, 5, 10, 20, 50, 100, 200)  # periods of the circles in the embeddings of numbers
RADIUS = 0.7


class Network(nn.Module):
    """A Llama decoder with one tensor [L, out, in] per kind of weights, so that an optimiser step is few calls.

    Args:
        size: sizes of the decoder.
        seed: seed of the initial weights.
        compute: dtype in which `forward` runs; the weights are float32.
        copying: whether the initial weights contain heads that copy earlier text.
        numbers: token id -> number, for tokens whose initial embeddings encode it; used with `copying`.
    """

    def __init__(
        self,
        size: Size,
        seed: int,
        compute: torch.dtype = torch.float32,
        copying: bool = False,
        numbers: Mapping[int, int] = MappingProxyType({}),
    ):
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
        frequencies = size.rope_base ** -(torch.arange(half) / half)
        angles = torch.arange(size.context).outer(frequencies)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        if copying:
            with torch.no_grad():
                self._set_copying_heads(frequencies, rng, numbers)

    def _set_copying_heads(self, frequencies: Tensor, rng: torch.Generator, numbers: Mapping[int, int]) -> None:
        """Set initial weights that copy the token which followed the last two tokens at their earlier occurrence.

        From small random weights, a model of this size and depth learns to copy a word only late in its training. The
        first block's heads write a note at every token: the two tokens before it. The first heads of later blocks
        search the position whose notes equal the current last tokens, and pass on its token (induction heads: Olsson
        et al. 2022, arXiv:2209.11895). There are several of them, so that each can be skipped.
        """
        d, width = self.size.width, self.size.width // self.size.n_heads
        code_width = NOTE_WIDTH * width // 64
        basis = _orthogonal(d, rng)
        read, notes = basis[:code_width], [basis[(i + 1) * code_width : (i + 2) * code_width] for i in range(2)]
        for token, number in numbers.items():
            self._encode_number(token, number, basis[3 * code_width :])
        self.embedding[:, 0] = SHARED
        for head, note in enumerate(notes[: self.size.n_heads]):
            self._look_back(slice(head * width, (head + 1) * width), head + 1, frequencies, read, note)
        # Rotary pairs that hardly turn within a prompt, so that a match counts at any distance.
        first = SLOW * (width // 2) // 32
        slow = [*range(first, width // 2), *range(width // 2 + first, width)]
        wanted, noted = torch.cat([read, notes[0]])[: len(slow)], torch.cat(notes)[: len(slow)]
        for layer in range(*MATCHING):
            if layer < self.size.n_layers:
                query, key = torch.zeros(2, width, d).unbind(0)
                copied = _orthogonal(d, rng)[:width]
                query[slow[: len(wanted)]], key[slow[: len(noted)]] = SHARP * wanted, SHARP * noted
                self._set_head(layer, slice(0, width), (query, key, copied), COPIED * copied.T)

    def _encode_number(self, token: int, number: int, unread: Tensor) -> None:
        """Encode a number in its embedding as positions on circles of several periods, in directions no head reads yet.

        Addition is then a rotation, the same for all numbers, as in large models (Kantamneni & Tegmark 2025,
        arXiv:2502.00873); with random embeddings every sum must be learnt separately.
        """
        turns = [2 * math.pi * number / period for period in PERIODS[: len(unread) // 2]]
        place = torch.tensor([part(turn) for turn in turns for part in (math.cos, math.sin)])
        plane = unread[: len(place)]
        self.embedding[token] += (RADIUS * place - plane @ self.embedding[token]) @ plane

    def _set_head(self, layer: int, rows: slice, parts: tuple[Tensor, Tensor, Tensor], out: Tensor) -> None:
        for i, weights in enumerate(parts):
            self.qkv[layer, i * self.size.width : (i + 1) * self.size.width][rows] = weights
        self.out[layer][:, rows] = out

    def _look_back(self, rows: slice, back: int, frequencies: Tensor, read: Tensor, note: Tensor) -> None:
        """Make a head of the first block attend to the position `back` before its own, and write a note of its token.

        Query and key read the constant that all embeddings share, with the key rotated by `back` positions; the
        fastest rotary pairs distinguish neighbouring positions.
        """
        d, half = self.size.width, len(frequencies)
        query, key, value = torch.zeros(3, 2 * half, d).unbind(0)
        out = torch.zeros(d, 2 * half)
        for pair in range(min(FAST, half)):
            query[pair, 0] = 1.0
            key[pair, 0] = (frequencies[pair] * back).cos()
            key[pair + half, 0] = (frequencies[pair] * back).sin()
        value[: len(read)] = read
        out[:, : len(note)] = NOTED * note.T
        self._set_head(0, rows, (query, key, value), out)

    def matrices(self) -> list[Tensor]:
        """Return the matrices of the blocks, each [L, out, in]."""
        return [self.qkv, self.out, self.gate_up, self.down]

    def vectors(self) -> list[Tensor]:
        """Return all other parameters: embedding and norms."""
        return [self.embedding, self.attn_norm, self.mlp_norm, self.norm]

    def blocks(self) -> list[tuple[Tensor, ...]]:
        """Return per block: attention norm, q k v, output; MLP norm, gate and up, down."""
        kinds = (self.attn_norm, self.qkv, self.out, self.mlp_norm, self.gate_up, self.down)
        return list(zip(*(kind.to(self.compute).unbind(0) for kind in kinds)))

    def forward(self, tokens: Tensor, dropped: Collection[int] = (), exit_after: int | None = None) -> list[Tensor]:
        """Return streams before the final norm.

        Args:
            tokens: [B, T] ids, from position 0 on.
            dropped: sublayers, in [0, 2L), that are skipped.
            exit_after: number of blocks after which the stream is returned as well; None for no exit.

        Returns:
            The last stream [B, T, d], followed by the exit's, if any.
        """
        stream, exit_stream = F.embedding(tokens, self.embedding.to(self.compute)), None
        cos, sin = (table[: tokens.shape[1]].to(self.compute) for table in (self.cos, self.sin))
        for i, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(self.blocks()):
            if i == exit_after:
                exit_stream = stream
            if 2 * i not in dropped:
                stream = stream + self._attention(stream, attn_norm, qkv, out, cos, sin)
            if 2 * i + 1 not in dropped:
                stream = stream + self.mlp(stream, mlp_norm, gate_up, down)
        return [stream] if exit_stream is None else [stream, exit_stream]

    def logits(self, stream: Tensor) -> Tensor:
        """Apply the final norm and the tied LM head: [..., d] -> [..., V]."""
        return F.linear(self.normed(stream, self.norm.to(stream.dtype)), self.embedding.to(stream.dtype))

    def _attention(self, stream: Tensor, norm: Tensor, qkv: Tensor, out: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attended = _causal(*self.heads(stream, norm, qkv, cos, sin))
        return F.linear(attended.transpose(1, 2).flatten(2), out)

    def mlp(self, stream: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """Return the output of an MLP sublayer, without the residual stream."""
        gate, up = F.linear(self.normed(stream, norm), gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, down)

    def heads(self, stream: Tensor, norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Return rotated queries and keys, and values, [B, H, T, D] each, from a stream [B, T, d] and tables [T, D]."""
        b, t, _ = stream.shape
        joined = F.linear(self.normed(stream, norm), qkv).view(b, t, 3, self.size.n_heads, -1)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        return _rotated(query, cos, sin), _rotated(key, cos, sin), value

    def normed(self, stream: Tensor, weight: Tensor) -> Tensor:
        """Apply an RMS norm."""
        return F.rms_norm(stream, weight.shape, weight, self.size.eps)

    @classmethod
    def load(cls, folder: Path, size: Size) -> Network:
        """Load the weights that `save` wrote, in float32."""
        from safetensors.torch import load_file

        tensors, network = load_file(folder / "model.safetensors"), cls(size, seed=0)
        with torch.no_grad():
            for name, parameter in network._exported().items():
                parameter.copy_(tensors[name])
        return network

    def save(self, folder: Path, bos: int, eos: int) -> None:
        """Write weights in bfloat16 and the config, as a Hugging Face Llama checkpoint."""
        from safetensors.torch import save_file
        from transformers import LlamaConfig

        size = self.size
        rounded = {k: v.detach().to("cpu", torch.bfloat16).clone() for k, v in self._exported().items()}
        save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
        LlamaConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.width,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.n_layers,
            num_attention_heads=size.n_heads,
            num_key_value_heads=size.n_heads,
            max_position_embeddings=size.context,
            rms_norm_eps=size.eps,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": size.rope_base},
            bos_token_id=bos,
            eos_token_id=eos,
            pad_token_id=eos,
            dtype="bfloat16",
            architectures=["LlamaForCausalLM"],
        ).save_pretrained(folder)

    def _exported(self) -> dict[str, Tensor]:
        """Return views of the weights by their names in a Hugging Face Llama checkpoint."""
        tensors: dict[str, Tensor] = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for i in range(self.size.n_layers):
            prefix = f"model.layers.{i}."
            for name, part in zip("qkv", self.qkv[i].chunk(3)):
                tensors[f"{prefix}self_attn.{name}_proj.weight"] = part
            for name, part in zip(("gate", "up"), self.gate_up[i].chunk(2)):
                tensors[f"{prefix}mlp.{name}_proj.weight"] = part
            tensors[f"{prefix}self_attn.o_proj.weight"], tensors[f"{prefix}mlp.down_proj.weight"] = (
                self.out[i],
                self.down[i],
            )
            tensors[f"{prefix}input_layernorm.weight"] = self.attn_norm[i]
            tensors[f"{prefix}post_attention_layernorm.weight"] = self.mlp_norm[i]
        return tensors


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin


def _orthogonal(d: int, rng: torch.Generator) -> Tensor:
    """Draw orthonormal rows [d - 1, d] that ignore the first entry, which all embeddings share."""
    return F.pad(torch.linalg.qr(torch.randn(d - 1, d - 1, generator=rng))[0], (1, 0))


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute causal attention, [B, H, T, D], in blocks of queries, each over the keys up to its end.

    In bfloat16 on a CPU, forward and backward take half the time of PyTorch's attention.
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
