"""Sparsity of the embedded model per domain: agreement of a layer set with the full model, and search for sets."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from studies.miniature.network import Network


@dataclass(frozen=True)
class ModelOutput:
    """Token ids of a prompt and of the full model's greedy output."""

    prompt: Sequence[int]
    output: Sequence[int]


class SetAgreement:
    """Teacher-forced agreement over outputs: share of tokens that a layer set predicts like the full model.

    Every token is predicted as the first token of a draft: the layer set runs on the previous token and attends to the
    full model's keys and values of all earlier positions, and to its own at its position.

    Args:
        network: the model, in float32.
        outputs: outputs of one domain; they are padded to the longest.
        most: most positions per output, spread evenly; None for all.
    """

    @torch.inference_mode()
    def __init__(self, network: Network, outputs: Sequence[ModelOutput], most: int | None = None):
        self._network, size = network, network.size
        lengths = [len(o.prompt) + len(o.output) - 1 for o in outputs]
        n_positions = [min(len(o.output), most or len(o.output)) for o in outputs]
        tokens = torch.zeros(len(outputs), max(lengths), dtype=torch.long)
        positions = torch.zeros(len(outputs), max(n_positions), dtype=torch.long)
        self._counts = torch.zeros_like(positions, dtype=torch.bool)
        for row, (output, n) in enumerate(zip(outputs, n_positions)):
            tokens[row, : lengths[row]] = torch.tensor([*output.prompt, *output.output[:-1]])
            positions[row, :n] = len(output.prompt) - 1 + torch.arange(n) * len(output.output) // n
            self._counts[row, :n] = True
        self._cos, self._sin = (table[positions].unsqueeze(1) for table in (network.cos, network.sin))
        # [B, 1, Q, T + 1]: a position attends to earlier ones, and to itself in the additional last column
        earlier = torch.arange(tokens.shape[1]) < positions[..., None]
        self._mask = F.pad(earlier, (0, 1), value=True).unsqueeze(1)
        self._embedded = F.embedding(tokens.gather(1, positions), network.embedding)
        self._cache: list[tuple[Tensor, Tensor]] = []
        stream = F.embedding(tokens, network.embedding)
        cos, sin = network.cos[: tokens.shape[1]], network.sin[: tokens.shape[1]]
        for attn_norm, qkv, out, mlp_norm, gate_up, down in network.blocks():
            query, key, value = network.heads(stream, attn_norm, qkv, cos, sin)
            self._cache.append((key, value))
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            stream = stream + F.linear(attended.transpose(1, 2).flatten(2), out)
            stream = stream + network.mlp(stream, mlp_norm, gate_up, down)
        index = positions[..., None].expand(-1, -1, size.width)
        self._targets = network.logits(stream.gather(1, index)).argmax(-1)

    @torch.inference_mode()
    def of(self, skipped: Collection[int]) -> float:
        """Return the share for the layer set that skips these sublayers."""
        network, stream = self._network, self._embedded
        for i, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(network.blocks()):
            if 2 * i not in skipped:
                query, own_key, own_value = network.heads(stream, attn_norm, qkv, self._cos, self._sin)
                key, value = self._cache[i]
                before = query @ key.mT
                own_scores = (query * own_key).sum(-1, keepdim=True)
                scores = torch.cat([before, own_scores], -1).mul_(query.shape[-1] ** -0.5)
                shares = scores.masked_fill_(~self._mask, float("-inf")).softmax(-1)
                attended = shares[..., :-1] @ value + shares[..., -1:] * own_value
                stream = stream + F.linear(attended.transpose(1, 2).flatten(2), out)
            if 2 * i + 1 not in skipped:
                stream = stream + network.mlp(stream, mlp_norm, gate_up, down)
        agrees = network.logits(stream).argmax(-1) == self._targets
        return float(agrees[self._counts].float().mean())


def search(agreement: SetAgreement, start: Collection[int], n_layers: int, rounds: int, seed: int) -> tuple[int, ...]:
    """Search layer sets of the size of `start` by hill climbing, with swaps within blocks 1..L-2.

    A swap that does not lose agreement is kept; full agreement ends the search.

    Args:
        rounds: most swaps to try.

    Returns:
        The skipped sublayers of the last set, ascending.
    """
    rng, best = random.Random(seed), set(start)
    best_agreement = agreement.of(best)
    for _ in range(rounds):
        if best_agreement == 1.0:
            break
        removed = rng.choice(sorted(best))
        added = rng.choice([i for i in range(2, 2 * n_layers - 2) if i not in best])
        candidate = best - {removed} | {added}
        candidate_agreement = agreement.of(candidate)
        if candidate_agreement >= best_agreement:
            best, best_agreement = candidate, candidate_agreement
    return tuple(sorted(best))
