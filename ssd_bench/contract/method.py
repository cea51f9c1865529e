"""The contract between engine and method: hooks, their inputs and results (types only).

The engine owns cache, clock, sampling, verification and trace. A method proposes candidates for one step and learns
from their verification:

    check(dims)                   before the weights load: refuse settings that cannot work with this model
    prepare(probe, samples)       once per run: offline search or profiling; its cost is recorded separately
    start(prefill)                once per prompt: reset the state of the last prompt, or keep it
    propose(context)              once per step: return a layer set to draft with, or a tree to verify
    observe(verification, probe)  once per step: learn from the outcome

The times of `start`, `propose` and `observe` are method overhead. Only `_target_` in a method's YAML file names its
class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from ssd_bench.contract.generation import Estimate, Generation
    from ssd_bench.contract.layer_set import LayerSet
    from ssd_bench.contract.shape import ModelDims
    from ssd_bench.contract.tree import TokenTree
    from ssd_bench.contract.window import Window
    from ssd_bench.cost.latency import Latency


@dataclass(frozen=True)
class Taps:
    """States of the residual stream to keep for `Prefill.hidden` and `Verification.hidden`.

    At boundary i in [0, 2L) the stream enters sublayer i; at boundary 2L it enters the final norm.

    Attributes:
        prefill, verify: boundaries, ascending.
        prompt_end: positions to keep at the prompt's end; None: all.
    """

    prefill: tuple[int, ...] = ()
    verify: tuple[int, ...] = ()
    prompt_end: int | None = None


@dataclass(frozen=True)
class LayerDraft:
    """Draft a chain with `layer_set`, then verify it.

    Attributes:
        layer_set: the sublayers that draft, perhaps with rounded weights (`Quantised`) or a window. A draft with a
            window is verified without `reuse_prefix`, since its states are not the full model's.
        max_len: γ, most drafted tokens (the engine also stops at EOS and at the length limits).
        stop_below: stop after a token whose probability (raw softmax) is below this; the token stays in the draft.
        widths: pairs (bound, k), highest bound first: number of candidates k at each depth, from the first pair whose
            bound is below the drafted token's probability (raw softmax), 1 if there is no such pair. One is the drafted
            token; the others are siblings without descendants: the next most likely tokens (greedy), or tokens drawn
            without replacement. Drafts with widths are verified without `reuse_prefix`.
        searched: whether a search chose the set, before or during the run; False for the initial set before a search,
            None for a method without a search.
        guess: (tokens drafted so far, largest number) -> tokens that may follow. The draft runs them in one pass with
            the newest token and keeps those that it drafts itself: the same tokens in fewer passes. None, a window and
            `reuse_prefix`: one pass per token.
    """

    layer_set: LayerSet
    max_len: int
    stop_below: float = 0.0
    widths: tuple[tuple[float, int], ...] = ()
    searched: bool | None = None
    guess: Callable[[Sequence[int], int], Sequence[int]] | None = None


@dataclass(frozen=True)
class Context:
    """The state of a prompt before a step.

    Attributes:
        step: 1-based index in the prompt (the prefill is step 0).
        length: c, committed positions in the cache, thus the position of the root.
        output: all emitted tokens; the last is the root.
        max_draft: longest draft within the limits of output and context; 0: no draft.
    """

    step: int
    length: int
    output: Sequence[int]
    max_draft: int


@dataclass(frozen=True)
class Sample:
    """A prompt's token ids and domain, for search or calibration, which the run does not evaluate."""

    prompt: Sequence[int]
    domain: str


@dataclass(frozen=True)
class Prefill:
    """The prompt's token ids and the tapped states of its forward pass.

    Attributes:
        hidden: [len(taps.prefill), min(taps.prompt_end, P), d], of the last positions; None without taps.
    """

    prompt: Sequence[int]
    hidden: Tensor | None


@dataclass(frozen=True)
class Verification:
    """The outcome of one step.

    Attributes:
        tree: the verified tree (node 0 is the root).
        path: accepted nodes from the root on; `len(path) - 1` is m, the accepted length.
        emitted: tokens appended to the output: m + 1, or fewer at EOS or the length limit.
        length: committed cache positions after the step.
        logits: [n, V] target logits at every node, float32.
        hidden: [len(taps.verify), n, d] tapped states at every node; None without taps.
        last: whether the output ended with this step, so that learning can help only later prompts.
    """

    step: int
    tree: TokenTree
    path: Sequence[int]
    emitted: Sequence[int]
    length: int
    logits: Tensor
    hidden: Tensor | None
    last: bool = False


@dataclass(frozen=True)
class Origin:
    """The run of a search: everything that its result depends on, except its settings.

    Attributes:
        folder: folder of stored searches.
        model, task: names in `conf/model` and `conf/task`.
        weights: identity of the weights.
        machine: device, threads and processor.
        command: command line of the run, for a search's provenance.
    """

    folder: Path
    model: str
    weights: str
    task: str
    dtype: str
    machine: str
    seed: int
    command: str


@dataclass(frozen=True)
class SearchUse:
    """A search that `prepare` ran or reused, for the record.

    Attributes:
        name: its folder in `Origin.folder`.
        evaluations, new: evaluated layer sets, in all and in this run.
        seconds: time of all evaluations, also in earlier runs.
    """

    name: str
    evaluations: int
    new: int
    seconds: float


class Probe(Protocol):
    """Access to the model outside the decode loop; it changes nothing that decoding reads.

    Attributes:
        n_layers: L.
        latency: times of the sublayers on this machine.
        origin: the run.
    """

    n_layers: int
    latency: Latency
    origin: Origin

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """Return the streams [n, d] that enter sublayer 0 for n tokens."""

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int, bits: int = 0) -> Tensor:
        """Run sublayer i over B independent continuations of the committed prefix.

        Args:
            i: index in [0, 2L).
            hidden: [B, r, d] streams at positions prefix_len .. prefix_len + r - 1; not modified.
            prefix_len: committed rows that every branch sees, besides its own r rows, causally.
            bits: bits of its weights; 0: as loaded, others only if in the method's `bits` (`Quantised`).

        Returns:
            [B, r, d] streams after the sublayer.

        Raises:
            ValueError: the prefix is not committed.
        """

    def run_sublayers(
        self,
        sublayers: Sequence[int],
        hidden: Tensor,
        prefix_len: int,
        window: Window | None = None,
        bits: Mapping[int, int] | None = None,
    ) -> Tensor:
        """Run several sublayers over one continuation of the committed prefix, in one pass.

        Args:
            sublayers: indices in [0, 2L), ascending.
            hidden: [r, d] streams that enter the first of them at positions prefix_len .. prefix_len + r - 1; not
                modified.
            prefix_len: committed rows before the r positions, which see each other causally.
            window: of the attentions. All r positions leave out the prefix rows that the first one leaves out.
            bits: bits of sublayers with rounded weights, by index, as for `apply_sublayer`.

        Returns:
            [r, d] streams after the last sublayer; the next pass overwrites them.

        Raises:
            ValueError: the prefix is not committed, or the cache has fewer than r free rows (at least 160 are free).
        """

    def mean_cosine(self, branches: Tensor, direction: Tensor) -> NDArray[np.float32]:
        """Return the mean over r tokens of the cosine between streams and a direction, [B] float32 on the host.

        Args:
            branches: [B, r, d] streams of any dtype.
            direction: [r, d] float32 unit vectors.
        """

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the argmax token ids [...] of final norm and LM head over streams [..., d]."""

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token ids of `predict` and their raw softmax probabilities, both [...], float32."""

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return streams [..., d] after the final norm, as the LM head reads them."""

    def logits(self, hidden: Tensor, norm: bool = True) -> Tensor:
        """Return float32 logits [..., V] of the LM head over streams [..., d], with or without the final norm.

        All logits exist at once, so pass many streams a few at a time.
        """

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return float32 logits [..., k] of k vocabulary entries: final norm and LM head over streams [..., d]."""

    def trial(self, method: Method, prompt: Sequence[int], new_tokens: int, max_steps: int | None = None) -> Generation:
        """Decode greedily and past any EOS, for offline searches.

        For `prepare` only, since it overwrites the cache. Source: Self-SD, searching.py:55-70.

        Raises:
            RuntimeError: a prompt is being decoded.
        """

    def prompt_states(self, prompt: Sequence[int], taps: Sequence[int]) -> Tensor:
        """Return the states [len(taps), P, d] of a prompt at these boundaries, as `Prefill.hidden`; empties the cache.

        For `prepare` only, as `trial`.
        """

    def top2_gap(self, tokens: Sequence[int]) -> float:
        """Return the difference of the two largest next-token logits after `tokens`; empties the cache.

        For `prepare` only, as `trial`.
        """

    def report_search(self, search: SearchUse) -> None:
        """Report a search that `prepare` ran or reused, for the record of the run."""


class Method(Protocol):
    """A drafting method, and base class in which only `propose` is abstract; the module docstring has the order of
    calls.

    Attributes:
        name: the preset's name.
        taps: states to keep; read before every forward pass, so it may change from step to step.
        reuse_prefix: whether verification starts at the first skipped sublayer, on states saved while drafting;
            `decode.reuse_prefix` overrides it.
        greedy_only: whether the method has no sampling mode; decode.mode=sample is then refused.
    """

    name: str
    taps: Taps = Taps()
    reuse_prefix: bool = False
    greedy_only: bool = False

    def check(self, dims: ModelDims) -> None:
        """Raise a ConfigError for settings that cannot work with this model; called before the weights load."""
        return

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Prepare for a run, once before its first prompt; the warm-up then decodes with a copy of this method.

        Args:
            probe: the same object as in `observe`; the method may keep it.
            samples: empty, unless the method is `Calibrated`.
        """
        return

    def start(self, prefill: Prefill) -> None:
        """Begin a new prompt."""
        return

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Propose candidates for the next step."""

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Learn from a verified step; return the Estimate of a search event, None without one."""
        return None
