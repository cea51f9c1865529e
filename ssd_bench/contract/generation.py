"""The output of one prompt, its trace step by step, and a method's estimates in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ssd_bench.contract.layer_set import LayerSet


@dataclass(frozen=True)
class Estimate:
    """A method's estimate for the layer set chosen at a search event, stored unchanged.

    Attributes:
        alpha: estimated acceptance rate in [0, 1].
        draft_len: its draft length γ*.
        tokens_per_s: estimated tokens per second (TPT).
    """

    alpha: float
    draft_len: int
    tokens_per_s: float


PARTS = ("prefill", "draft", "verify", "overhead")
"""Parts of an output's work (`Work.part`); overhead: `start`, `propose` and `observe` of the method."""


@dataclass(frozen=True, slots=True)
class WorkKind:
    """Work of one of several equal calls of the model.

    Attributes:
        rows: nodes of each call; in a search, branches times nodes.
        attentions, mlps: sublayers that each call runs over these rows.
        heads: LM heads that each call computes over these rows, as a share of the vocabulary: 1, 0 or a part.
        launches: launches by the host that each call consists of, without a wait between them.
        int8_attentions, int8_mlps, int8_heads: those among them that read 8-bit weights.
        int4_attentions, int4_mlps, int4_heads: those among them that read 4-bit weights.
    """

    rows: int
    attentions: int
    mlps: int
    heads: float
    launches: int
    int8_attentions: int = 0
    int8_mlps: int = 0
    int8_heads: float = 0.0
    int4_attentions: int = 0
    int4_mlps: int = 0
    int4_heads: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(WorkKind):
    """Equal calls of the model in one part of a step.

    Attributes:
        part: one of `PARTS`.
        calls: number of calls; those without sublayers and heads compare streams (`Probe.mean_cosine`).
        context: prefix rows that every attention reads, mean over the calls.
        ms: milliseconds of all calls together; None on a GPU, where they are only queued.
    """

    part: str
    calls: int
    context: float
    ms: float | None


@dataclass
class Step:
    """One step of the trace; times are in milliseconds, filled in after the prompt's last step.

    Attributes:
        index: 1-based; the prefill is step 0.
        context_len: c before the step.
        layer_set: sublayers that drafted; None for a proposed tree.
        draft_len: k, candidates on the longest path.
        tree_nodes: nodes verified, root included.
        accepted_len: m, accepted candidates in the output, without the bonus token.
        emitted: tokens appended to the output.
        stop_reason: why drafting ended: confidence, length (γ), eos, budget (end of output or context), or none (a
            proposed tree).
        searched: whether a search chose the layer set, as in `LayerDraft`.
        estimate: after a search event in this step.
        marks: moments at the start and after propose, draft, verify to commit, and observe.
        work: calls of the model, by part; in the first step also in the method's `start`.
        verify_ms: time from verification to commit.
        policy_ms: method overhead: `propose` and `observe`, in the first step also `start`.
    """

    index: int
    context_len: int
    layer_set: LayerSet | None
    draft_len: int
    tree_nodes: int
    accepted_len: int
    emitted: int
    stop_reason: str
    searched: bool | None
    estimate: Estimate | None
    marks: tuple[Any, ...] = ()
    work: list[Work] = field(default_factory=list)
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    policy_ms: float = 0.0


@dataclass
class Generation:
    """The output of one prompt and its trace; `finish_reason` is eos, length, context or steps (`max_steps`).

    Attributes:
        prefill_work: calls of the prefill; empty for an arm that does not log them.
    """

    output: list[int]
    finish_reason: str
    prefill_ms: float
    decode_ms: float
    steps: list[Step] = field(default_factory=list)
    prefill_work: list[Work] = field(default_factory=list)
