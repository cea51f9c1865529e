"""The acceptance rules: warped distributions, greedy match, speculative sampling over chains and trees.

Tokens are accepted only here, from a tree (perhaps a chain) and the target's logits or probabilities. p is the target's
probability of a token, q the draft's.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from ssd_bench.contract.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Range, settings

LOWEST_TEMPERATURE = 1e-6
"""Lowest temperature: it already gives a one-hot distribution; a lower one may overflow float32."""


@settings("decode", frozen=True)
class Decoding:
    """The rules for choosing tokens and for ending an output (`conf/decode`)."""

    mode: Literal["greedy", "sample"] = "greedy"
    """The most likely token, or one drawn after temperature, top-k and top-p, in that order."""
    temperature: Annotated[float, Range(LOWEST_TEMPERATURE, note=" (decode.mode=greedy is temperature 0)")] = 1.0
    """Divisor of the logits."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Draw among the most likely tokens that together have this probability; 1: off."""
    top_k: Annotated[int, Range(0, note=" (0: off)")] = 0
    """Draw among this many most likely tokens; 0: off."""
    max_new_tokens: Count | None = None
    """Longest output in tokens; null: the task's own limit."""
    reuse_prefix: bool | None = None
    """Verify from the first skipped sublayer on the states that drafting left; null: as in the method's paper."""

    def __post_init__(self) -> None:
        if self.mode == "greedy" and (self.temperature, self.top_p, self.top_k) != (1.0, 1.0, 0):
            warpers = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
            raise ConfigError("decode.mode", "greedy", f"sample, with {warpers}: greedy decoding uses none of them")

    @property
    def greedy(self) -> bool:
        return self.mode == "greedy"


def warp(logits: Tensor, decoding: Decoding) -> Tensor:
    """Return the probabilities [n, V] of logits [n, V] after temperature, top-k and top-p, in float32 or wider.

    The most likely token always survives. Ties at the edge of top-k and top-p keep the lower id.
    """
    scores = logits / decoding.temperature
    if decoding.top_k and decoding.top_k < scores.shape[-1]:
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        scores = scores.scatter(-1, order[..., decoding.top_k :], float("-inf"))
    probs = scores.softmax(-1)
    if decoding.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        # drop a token if the more likely ones together reach top_p
        mass_ahead = ordered.cumsum(-1) - ordered
        dropped = mass_ahead >= decoding.top_p
        dropped[..., 0] = False  # the first token survives even a top_p that float32 rounds to 0, where 0 >= 0 holds
        # from sorted order back to the order of token ids
        probs = probs.masked_fill(torch.empty_like(dropped).scatter_(-1, order, dropped), 0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def draw(probs: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw n token ids without replacement from a distribution [V], on its device; -1 where no mass is left.

    The ids are those of `torch.multinomial`, without its checks, for which the host would wait.
    """
    # exponential race: with independent E_x ~ Exp(1), the ids of the n largest p(x) / E_x are such a draw
    noise = torch.empty_like(probs).exponential_(1, generator=generator)
    ratios, ids = torch.div(probs, noise, out=noise).topk(n)
    return torch.where(ratios > 0, ids, -1)


def verify_greedy(tree: TokenTree, predicted: list[int]) -> tuple[list[int], int]:
    """Follow the target's argmax from the root: a child is accepted if its token is the argmax at its parent.

    Returns:
        The accepted nodes, root first, and the target's next token.
    """
    path = [0]
    while True:
        token = predicted[path[-1]]
        child = next((c for c in tree.children[path[-1]] if tree.tokens[c] == token), None)
        if child is None:
            return path, token  # no child has the argmax: it is the target's own token (bonus)
        path.append(child)


def verify_sampled(tree: TokenTree, probs: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
    """Accept nodes by rejection sampling, which leaves the target's distribution unchanged.

    At every accepted node the children are tried in order. Child x is accepted with probability min(1, p(x)/q(x)). On
    rejection p becomes norm(max(p - q, 0)), and q loses x and is renormalised (speculative sampling, Leviathan et al.
    2023; siblings drawn without replacement as in SpecInfer, Miao et al. 2024). For candidates not drawn at random, q
    is a point mass: x is accepted with probability p(x), and p loses x on rejection.

    Args:
        probs: [n, V] warped target probabilities at every node.

    Returns:
        The accepted nodes, root first, and a token drawn from the remaining p at the last.
    """
    path = [0]
    while True:
        node = path[-1]
        p, accepted = probs[node], None
        if not tree.children[node]:
            return path, int(draw(p, 1, generator))  # a leaf: the whole path was accepted, draw the bonus token from p
        q = None if tree.draft_probs is None else tree.draft_probs[node]
        for child in tree.children[node]:
            token = tree.tokens[child]
            q_token = 1.0 if q is None else float(q[token])
            uniform = float(torch.rand((), generator=generator, device=generator.device))
            # accept with probability min(1, p(x)/q(x)): as uniform < 1, p >= q always accepts;
            # q(x) = 0: x was not drawn from q, so the rule does not cover it: reject
            if q_token > 0 and uniform * q_token < float(p[token]):
                accepted = child
                break
            p, q = _reject(p, q, token)  # try the next sibling with the residual p and the remaining q
        if accepted is None:
            return path, int(draw(p, 1, generator))  # every child was rejected: draw the bonus token from the residual
        path.append(accepted)


def _reject(p: Tensor, q: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
    """Return the residual of p after the rejection of a token, and q without the token."""
    if q is None:  # q is a point mass on the token: max(p - q, 0) is p without the token
        residual = p.clone()
        residual[token] = 0
    else:
        residual = (p - q).clamp_(min=0)  # p' = norm(max(p - q, 0)): Leviathan et al. 2023, section 2.3
        # q' = norm(q without the token): siblings are drawn without replacement
        q = q.clone()
        q[token] = 0
        total = q.sum()
        q = q / total if total > 0 else q
    mass = residual.sum()
    # no residual: p = q up to rounding, so only rounding caused the rejection, and p stays
    return (residual / mass if mass > 0 else p), q
