"""How much of the embedded model a domain needs: agreement of a layer set with the full model, and search for sets."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.miniature.network import Network


@dataclass(frozen=True)
class Output:
    """Token ids of a prompt and of the full model's greedy output."""

    prompt: Sequence[int]
    output: Sequence[int]


class Agreement:
    """Teacher-forced agreement over outputs: the share of tokens that a layer set predicts as the full model does.

    Every token is predicted as the first of a draft is: the layer set runs on the token before it and attends to the
    full model's keys and values of everything earlier, and to its own at its own position.

    Args:
        network: the model, in float32.
        outputs: of one domain; they are padded to the longest.
        most: tokens of an output that are looked at, spread over it evenly; None: all.
    """

    @torch.inference_mode()
    def __init__(self, network: Network, outputs: Sequence[Output], most: int | None = None):
        self._network, size = network, network.size
        lengths = [len(o.prompt) + len(o.output) - 1 for o in outputs]
        seen = [min(len(o.output), most or len(o.output)) for o in outputs]
        tokens = torch.zeros(len(outputs), max(lengths), dtype=torch.long)
        positions = torch.zeros(len(outputs), max(seen), dtype=torch.long)
        self._counts = torch.zeros_like(positions, dtype=torch.bool)
        for row, (made, n) in enumerate(zip(outputs, seen)):
            tokens[row, : lengths[row]] = torch.tensor([*made.prompt, *made.output[:-1]])
            positions[row, :n] = len(made.prompt) - 1 + torch.arange(n) * len(made.output) // n
            self._counts[row, :n] = True
        self._cos, self._sin = (table[positions].unsqueeze(1) for table in (network.cos, network.sin))
        # [B, 1, Q, T]: a position sees what is before it; its own row is joined as one more column
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
        at = positions[..., None].expand(-1, -1, size.width)
        self._targets = network.logits(stream.gather(1, at)).argmax(-1)

    @torch.inference_mode()
    def of(self, skipped: Collection[int]) -> float:
        """The share for the set that skips these sublayers."""
        network, stream = self._network, self._embedded
        for i, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(network.blocks()):
            if 2 * i not in skipped:
                query, own_key, own_value = network.heads(stream, attn_norm, qkv, self._cos, self._sin)
                key, value = self._cache[i]
                before = query @ key.mT
                own = (query * own_key).sum(-1, keepdim=True)
                scores = torch.cat([before, own], -1).mul_(query.shape[-1] ** -0.5)
                shares = scores.masked_fill_(~self._mask, float("-inf")).softmax(-1)
                attended = shares[..., :-1] @ value + shares[..., -1:] * own_value
                stream = stream + F.linear(attended.transpose(1, 2).flatten(2), out)
            if 2 * i + 1 not in skipped:
                stream = stream + network.mlp(stream, mlp_norm, gate_up, down)
        same = network.logits(stream).argmax(-1) == self._targets
        return float(same[self._counts].float().mean())


def search(agreement: Agreement, start: Collection[int], n_layers: int, rounds: int, seed: int) -> tuple[int, ...]:
    """Hill climbing over layer sets of the size of `start`, by swaps within blocks 1..L-2.

    Args:
        rounds: swaps tried at most; one that does not lose agreement is kept, and full agreement ends the search.

    Returns:
        The skipped sublayers of the last set, ascending.
    """
    rng, best = random.Random(seed), set(start)
    reached = agreement.of(best)
    for _ in range(rounds):
        if reached == 1.0:
            break
        left = rng.choice(sorted(best))
        entered = rng.choice([i for i in range(2, 2 * n_layers - 2) if i not in best])
        tried = best - {left} | {entered}
        found = agreement.of(tried)
        if found >= reached:
            best, reached = tried, found
    return tuple(sorted(best))
