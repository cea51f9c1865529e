"""Choosing and verifying tokens: warped distributions, greedy match, speculative sampling over chains and trees.

Verification exists here and nowhere else, as pure functions of a tree and the target's logits. A chain is a tree
whose nodes have one child each.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from ssd_bench.core.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Range, settings

COLDEST = 1e-6
"""Lowest temperature: logits divided by a lower one may overflow float32, and here they are one-hot already."""


@settings("decode", frozen=True)
class Decoding:
    """How tokens are chosen and when decoding ends (`conf/decode`)."""

    mode: Literal["greedy", "sample"] = "greedy"
    """The most likely token, or one drawn after temperature, top-k and top-p, in that order."""
    temperature: Annotated[float, Range(COLDEST, note=" (decode.mode=greedy is temperature 0)")] = 1.0
    """What logits are divided by."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Draw among the most likely tokens that together have this probability; 1: off."""
    top_k: Annotated[int, Range(0, note=" (off)")] = 0
    """Draw among so many most likely tokens."""
    max_new_tokens: Count | None = None
    """Longest output; null takes the task's own limit."""
    reuse_prefix: bool | None = None
    """Verify from the first skipped sublayer on the states that drafting left; null leaves it to the method's paper."""

    def __post_init__(self) -> None:
        if self.mode == "greedy" and (self.temperature, self.top_p, self.top_k) != (1.0, 1.0, 0):
            given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
            raise ConfigError("decode.mode", "greedy", f"sample, with {given}: greedy decoding uses none of them")

    @property
    def greedy(self) -> bool:
        return self.mode == "greedy"


def warp(logits: Tensor, decoding: Decoding) -> Tensor:
    """Probabilities [n, V] after temperature, top-k and top-p, in float32 or wider.

    The most likely token always survives. Ties at the edge of top-k and top-p keep the lower id.
    """
    scores = logits / decoding.temperature
    if decoding.top_k and decoding.top_k < scores.shape[-1]:
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        scores = scores.scatter(-1, order[..., decoding.top_k :], float("-inf"))
    probs = scores.softmax(-1)
    if decoding.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered  # mass of the tokens ahead of each one
        dropped = before >= decoding.top_p
        dropped[..., 0] = False  # in float32 a top_p below 1e-45 is 0, which is the mass before the first
        probs = probs.masked_fill(torch.empty_like(dropped).scatter_(-1, order, dropped), 0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def draw(probs: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n token ids drawn without replacement from a distribution [V], on its device; -1 where no mass is left.

    They are those that `torch.multinomial` draws, whose checks would wait for the device.
    """
    noise = torch.empty_like(probs).exponential_(1, generator=generator)
    weights, ids = torch.div(probs, noise, out=noise).topk(n)
    return torch.where(weights > 0, ids, -1)


def verify_greedy(tree: TokenTree, predicted: list[int]) -> tuple[list[int], int]:
    """Follow the target's argmax from the root.

    Args:
        tree: candidates.
        predicted: argmax of the target's logits at every node.

    Returns:
        The accepted nodes, root first, and the token that the target adds after the last of them.
    """
    path = [0]
    while True:
        token = predicted[path[-1]]
        child = next((c for c in tree.children[path[-1]] if tree.tokens[c] == token), None)
        if child is None:
            return path, token
        path.append(child)


def verify_sampled(tree: TokenTree, probs: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
    """Rejection sampling over a tree that leaves the target's distribution unchanged.

    At every accepted node the children are tried in order: child x is accepted with probability
    min(1, p(x)/q(x)); on rejection p becomes norm(max(p - q, 0)) and q loses x and is renormalised (speculative
    sampling, Leviathan et al. 2023; siblings drawn without replacement as in SpecInfer, Miao et al. 2024).
    Candidates that were not drawn at random have q = a point mass: accepted with probability p(x), p loses x.

    Args:
        tree: candidates, with the distributions they were drawn from.
        probs: [n, V] warped target probabilities at every node.
        generator: source of the uniform numbers, not used for drafting.

    Returns:
        The accepted nodes, root first, and the token drawn from what is left of p at the last of them.
    """
    path = [0]
    while True:
        node = path[-1]
        p, accepted = probs[node], None
        if not tree.children[node]:
            return path, int(draw(p, 1, generator))
        q = None if tree.draft_probs is None else tree.draft_probs[node]
        for child in tree.children[node]:
            token = tree.tokens[child]
            q_token = 1.0 if q is None else float(q[token])
            uniform = float(torch.rand((), generator=generator, device=generator.device))
            if q_token > 0 and uniform * q_token < float(p[token]):
                accepted = child
                break
            p, q = _reject(p, q, token)
        if accepted is None:
            return path, int(draw(p, 1, generator))
        path.append(accepted)


def _reject(p: Tensor, q: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
    """Target and draft distributions after the rejection of `token`."""
    if q is None:
        rest = p.clone()
        rest[token] = 0
    else:
        rest = (p - q).clamp_(min=0)
        q = q.clone()
        q[token] = 0
        total = q.sum()
        q = q / total if total > 0 else q
    mass = rest.sum()
    # p = q up to rounding leaves nothing: the rejection itself was a rounding artefact, so p stands
    return (rest / mass if mass > 0 else p), q
