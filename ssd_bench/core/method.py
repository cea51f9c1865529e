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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ssd_bench.core.layer_set import LayerSet
    from ssd_bench.core.probe import Probe
    from ssd_bench.core.tree import TokenTree


@dataclass(frozen=True)
class ModelDims:
    """The sizes of a model that settings are checked against.

    Attributes:
        name: the model's name in `conf/model`.
        n_layers: L, number of blocks (2L sublayers).
        n_params: number of parameters.
        context: longest sequence, prompt and output together, in tokens.
        vocab_size: number of token ids.
    """

    name: str
    n_layers: int
    n_params: int
    context: int
    vocab_size: int


@dataclass(frozen=True)
class Taps:
    """Which states of the residual stream the engine keeps for `Prefill.hidden` and `Verification.hidden`.

    Boundary i in [0, 2L] is the stream that enters sublayer i; 2L is the stream that enters the final norm.
    """

    prefill: tuple[int, ...] = ()
    verify: tuple[int, ...] = ()


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
    """

    layer_set: LayerSet
    max_len: int
    stop_below: float = 0.0
    widths: tuple[tuple[float, int], ...] = ()


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
        hidden: [len(taps.prefill), P, d] tapped states, None without taps.
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
    """

    step: int
    tree: TokenTree
    path: Sequence[int]
    emitted: Sequence[int]
    length: int
    logits: Tensor
    hidden: Tensor | None


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
        """Whatever is done once per run before the first prompt is decoded.

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
class Illustrated(Protocol):
    """A method with arrays that a figure shows; the runner keeps them beside the record, one `.npz` file a name."""

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """File stem -> arrays by name; asked for once, when the run has ended."""
        ...
