"""The contract of a method: what it sees, what it may answer, what is timed (types only).

The engine owns cache, clock, sampling, verification and trace. A method proposes candidates for one step and learns
from their verification:

    check(dims)                 before the weights load: refuse settings that cannot work with this model
    prepare(probe, samples)     once per run; offline search or profiling, its cost is recorded apart
    start(prefill)              once per prompt; decides which state is reset
    propose(context)            once per step, timed as policy: draft with a layer set, or verify this tree
    observe(verification, probe)  once per step, timed as policy: learn

A method file is found by the `_target_` of its YAML; nothing else needs to know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ssd_bench.core.engine import Generation
    from ssd_bench.core.layer_set import LayerSet
    from ssd_bench.core.tree import TokenTree
    from ssd_bench.core.window import Window
    from ssd_bench.cost.latency import Latency
    from ssd_bench.model.shape import ModelDims


@dataclass(frozen=True)
class Taps:
    """Which states of the residual stream the engine keeps for `Prefill.hidden` and `Verification.hidden`.

    Boundary i in [0, 2L] is the stream that enters sublayer i; 2L is the stream that enters the final norm.

    Attributes:
        prefill, verify: boundaries.
        prompt_end: most positions that `Prefill.hidden` holds, those at the prompt's end; None: all.
    """

    prefill: tuple[int, ...] = ()
    verify: tuple[int, ...] = ()
    prompt_end: int | None = None


@dataclass(frozen=True)
class LayerDraft:
    """Draft a chain with `layer_set`, then verify it.

    Attributes:
        layer_set: the sublayers that run while drafting.
        max_len: γ, draft at most this many tokens (the engine also stops at EOS and at the length limits).
        stop_below: stop after a token whose top-1 probability (raw softmax) is below this; the token is kept.
        widths: (probability, k), highest first: at each depth the first pair whose probability the drafted token's
            (raw softmax) exceeds says how many candidates are verified there, k - 1 of them siblings that nothing
            follows: the next likely ones (greedy), or drawn without replacement. Where no pair applies, and with
            none given, there are no siblings. Siblings are verified without `reuse_prefix`.
        searched: whether a search chose the set, before the run or in it; False for the one that a method begins with
            until its search has found one, None where nothing is searched.
        window: the positions that the kept attentions read while drafting; None: all. A draft with a window is
            verified without `reuse_prefix`, since its states are not the full model's.
    """

    layer_set: LayerSet
    max_len: int
    stop_below: float = 0.0
    widths: tuple[tuple[float, int], ...] = ()
    searched: bool | None = None
    window: Window | None = None


@dataclass(frozen=True)
class Context:
    """What is known before a step.

    Attributes:
        step: 1-based index of this step in the prompt (the prefill is step 0).
        length: c, number of committed positions in the cache; the root token comes next.
        output: all tokens emitted so far; the last one is the root.
        max_draft: longest draft that the length limits still allow (0: nothing).
    """

    step: int
    length: int
    output: Sequence[int]
    max_draft: int


@dataclass(frozen=True)
class Sample:
    """A prompt that the run does not evaluate, to search or calibrate on.

    Attributes:
        prompt: token ids, in the format of the evaluated prompts.
        domain: as in `task.Prompt`.
    """

    prompt: Sequence[int]
    domain: str


@dataclass(frozen=True)
class Prefill:
    """The prompt and what its forward pass left.

    Attributes:
        prompt: token ids of the prompt.
        hidden: [len(taps.prefill), min(taps.prompt_end, P), d] tapped states, None without taps.
    """

    prompt: Sequence[int]
    hidden: Tensor | None


@dataclass(frozen=True)
class Verification:
    """The outcome of one step.

    Attributes:
        step: as in `Context`.
        tree: what was verified (node 0 is the root).
        path: accepted nodes from the root on; `len(path) - 1` is m, the accepted length.
        emitted: tokens that this step appended to the output, at most m + 1 (cut at EOS and at the length limit).
        length: committed cache positions after the step.
        logits: [n, V] target logits at every node, float32.
        hidden: [len(taps.verify), n, d] tapped states at every node, None without taps.
        last: whether the output ended with this step: what is learnt now serves no step of this prompt.
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
class Estimate:
    """What a method believes of the layer set that it chose at a search event; goes into the record as it is.

    Attributes:
        alpha: estimated acceptance rate in [0, 1].
        draft_len: the draft length γ* that the estimate holds for.
        tokens_per_s: estimated tokens per second (TPT).
    """

    alpha: float
    draft_len: int
    tokens_per_s: float


@dataclass(frozen=True)
class Origin:
    """Where a search takes place: its provenance, and what its result depends on beside its own settings.

    Attributes:
        folder: where the results of searches are kept.
        model: name in `conf/model`.
        weights: identity of the weights.
        task: name in `conf/task`.
        dtype: of the weights.
        machine: device, threads and processor.
        seed: the run's.
        searches: what `prepare` searched or found: name, sets evaluated, how many of them now, seconds of them all.
    """

    folder: Path
    model: str
    weights: str
    task: str
    dtype: str
    machine: str
    seed: int
    searches: list[dict[str, Any]] = field(default_factory=list)


class Probe(Protocol):
    """What a method may ask of the model outside the decode loop; it changes nothing that decoding sees.

    Attributes:
        n_layers: L.
        latency: times of the sublayers on this machine; set by the runner before `prepare`.
        origin: of the run; set by the runner before `prepare`.
    """

    n_layers: int
    latency: Latency
    origin: Origin

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """Streams [n, d] that n tokens enter sublayer 0 with."""
        ...

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int) -> Tensor:
        """Sublayer i over B independent continuations of the committed prefix.

        Args:
            i: index in [0, 2L).
            hidden: [B, r, d] streams at positions prefix_len .. prefix_len + r - 1; not modified.
            prefix_len: committed rows that every branch sees; beyond them it sees its own r rows, causally.

        Returns:
            [B, r, d] streams after the sublayer.

        Raises:
            ValueError: the prefix is not committed.
        """
        ...

    def run_sublayers(
        self, sublayers: Sequence[int], hidden: Tensor, prefix_len: int, window: Window | None = None
    ) -> Tensor:
        """Run several sublayers over one continuation of the committed prefix, in one pass.

        Args:
            sublayers: indices in [0, 2L), ascending.
            hidden: [r, d] streams that enter the first of them at positions prefix_len .. prefix_len + r - 1; not
                modified.
            prefix_len: committed rows before them; each position sees its own and those before it, too.
            window: the positions that attentions read; the window of the first position serves all r of them.

        Returns:
            [r, d] streams after the last sublayer, which the next pass overwrites.

        Raises:
            ValueError: the prefix is not committed, or the cache has fewer than r free rows (160 at least).
        """
        ...

    def predict(self, hidden: Tensor) -> Tensor:
        """Argmax token ids [..., ] of final norm and LM head over streams [..., d]."""
        ...

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`predict`, and the raw softmax probabilities [..., ] of those tokens, float32."""
        ...

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Streams [..., d] as the LM head reads them."""
        ...

    def logits(self, hidden: Tensor, norm: bool = True) -> Tensor:
        """Float32 logits [..., V] of the LM head over streams [..., d], with or without the final norm before it.

        All of them at once: a caller with many streams passes a few at a time.
        """
        ...

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Float32 logits [..., k] of k vocabulary entries, after final norm and LM head, over streams [..., d]."""
        ...

    def trial(self, method: Method, prompt: Sequence[int], new_tokens: int, max_steps: int | None = None) -> Generation:
        """Decode greedily and past any EOS, whatever the run's own decoding: what offline searches compare sets by.

        For `prepare` only, since it takes the cache. Source: Self-SD, searching.py:55-70.

        Raises:
            RuntimeError: a prompt is being decoded.
        """
        ...

    def prompt_states(self, prompt: Sequence[int], taps: Sequence[int]) -> Tensor:
        """States [len(taps), P, d] of a prompt at the given boundaries, as `Prefill.hidden`; empties the cache.

        For `prepare` only, as `trial`.
        """
        ...

    def top2_gap(self, tokens: Sequence[int]) -> float:
        """Difference of the two largest next-token logits after `tokens`; empties the cache.

        For `prepare` only, as `trial`.
        """
        ...


class Method(Protocol):
    """A drafting method; see the module docstring for the order of calls.

    Attributes:
        name: name in tables; the preset's name.
        taps: states to keep; read before every forward pass, so it may change from step to step.
        reuse_prefix: whether its paper verifies from the first skipped sublayer on saved draft states.
        greedy_only: whether it has no sampling mode; a run with decode.mode=sample then refuses it.
    """

    name: str
    taps: Taps
    reuse_prefix: bool
    greedy_only: bool

    def check(self, dims: ModelDims) -> None:
        """Raise ConfigError for settings that this model rules out; called before the weights load."""
        ...

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Whatever is done once per run before the first prompt is decoded; a copy of what it leaves warms up.

        Args:
            probe: the same as in `observe`; may be kept.
            samples: none, unless the method is `Calibrated`.
        """
        ...

    def start(self, prefill: Prefill) -> None:
        """Begin a new prompt."""
        ...

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Candidates for the next step."""
        ...

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Learn from a verified step; the Estimate of a search event, if there was one."""
        ...


@runtime_checkable
class Calibrated(Protocol):
    """A method that searches or calibrates before the run, on prompts that the run does not evaluate.

    Attributes:
        calibration: how many prompts of each domain `prepare` gets: the items of the task that follow the evaluated
            ones, with the domains in the order in which the run meets them. A run with fewer is refused.
    """

    calibration: int


@runtime_checkable
class Stateful(Protocol):
    """A method whose state survives from prompt to prompt, so that a resumed run must restore it."""

    def state(self) -> bytes:
        """Everything that the next prompt depends on."""
        ...

    def restore(self, state: bytes) -> None:
        """Continue from what `state` returned."""
        ...


@runtime_checkable
class Qualified(Protocol):
    """A method that is not quite what its name says.

    Attributes:
        caveat: what a reader of its numbers has to know; the record keeps it, and tables show it beside them.
    """

    caveat: str


@runtime_checkable
class Illustrated(Protocol):
    """A method with arrays that a figure shows; the runner keeps them beside the record, one `.npz` file a name."""

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """File stem -> arrays by name; asked for once, when the run has ended."""
        ...
