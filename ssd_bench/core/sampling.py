"""Choosing and verifying tokens: warped distributions, greedy match, speculative sampling over chains and trees.

Verification exists here and nowhere else, as pure functions of a tree and the target's logits. A chain is a tree
whose nodes have one child each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_bench.core.tree import TokenTree
from ssd_bench.errors import ConfigError


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen and when decoding ends (`conf/decode`).

    Attributes:
        mode: `greedy` or `sample`.
        temperature, top_p, top_k: warpers of `sample`, applied in the order temperature, top-k, top-p; top_k 0 and
            top_p 1 are off.
        max_new_tokens: longest output; None takes the task's own limit.
        reuse_prefix: verify from the first skipped sublayer on the states that drafting left; None leaves it to
            the method's paper.
    """

    mode: str = "greedy"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int | None = None
    reuse_prefix: bool | None = None

    def __post_init__(self) -> None:
        checks = (
            ("mode", self.mode in ("greedy", "sample"), "greedy or sample"),
            ("temperature", self.temperature > 0, "a number above 0 (decode.mode=greedy is temperature 0)"),
            ("top_p", 0 < self.top_p <= 1, "a number in (0, 1]"),
            ("top_k", self.top_k >= 0, "a whole number, 0 for off"),
            ("max_new_tokens", self.max_new_tokens is None or self.max_new_tokens >= 1, "at least 1, or null"),
        )
        for field, fine, allowed in checks:
            if not fine:
                raise ConfigError(f"decode.{field}", getattr(self, field), allowed)
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
        probs = probs.masked_fill(
            torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, before >= decoding.top_p), 0
        )
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
