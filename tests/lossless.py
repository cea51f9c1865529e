"""Tests for every method: greedy output equal to AR's on adversarial cases, and AR's sampled distribution."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from scipy.stats import chi2_contingency

from methods.ar import AR
from ssd_bench.contract.generation import Generation
from ssd_bench.contract.method import Context, LayerDraft, Method, Origin, Probe, Sample, Taps, Verification
from ssd_bench.contract.optional import Calibrated
from ssd_bench.contract.shape import ModelDims
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.engine.engine import SCRATCH, Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.decoder import Decoder
from tests.conftest import CONTEXT, LAYERS, VOCAB
from tests.runs import config

Load = Callable[..., Decoder]
DIMS = ModelDims("tiny", LAYERS, 100_000, CONTEXT, VOCAB)
FAMILIES = ("llama", "qwen2", "qwen3")
CASES, DRAWS, LONGEST_SAMPLE = 50, 400, 6
ROUNDED_PASSES = (NodeTimes(1, 1e-3, 0.25, 0.25, 0.0), NodeTimes(64, 1e-3, 0.5, 0.5, 0.0))
PROFILE = Latency(0.5, 1e-3, 0.5, int8_passes=ROUNDED_PASSES, int4_passes=ROUNDED_PASSES)
# What AR made of a case, which no method's settings change, for all tests of a process.
_greedy: dict[int, Generation] = {}
_sampled: list[list[int]] = []


class Drafting(AR):
    """Drafts with given sets in turn, and keeps every verification."""

    def __init__(self, *drafts: LayerDraft, taps: Sequence[int] = (), reuse_prefix: bool = False) -> None:
        super().__init__("drafting")
        self.drafts, self.taps, self.reuse_prefix = drafts, Taps(verify=tuple(taps)), reuse_prefix
        self.seen: list[Verification] = []

    def propose(self, context: Context) -> LayerDraft:  # type: ignore[override]
        return self.drafts[context.step % len(self.drafts)]

    def observe(self, verification: Verification, probe: Probe) -> None:
        self.seen.append(verification)


def method_of(preset: str, **changes: Any) -> Any:
    """A preset's method with changed settings, as by Hydra's `instantiate`, in milliseconds."""
    return _instance(deepcopy(_settings(preset)), changes)


@cache
def _settings(preset: str) -> Any:
    return OmegaConf.to_container(config(preset), resolve=True)


def _instance(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
    arguments = {name: value for name, value in {**settings, **changes}.items() if not name.startswith("_")}
    for name, value in settings.items():
        if isinstance(value, dict) and "_target_" in value:
            arguments[name] = _instance(value, changes.get(name, {}))
    return get_class(settings["_target_"])(**arguments)


def engine_for(decoder: Decoder, positions: int, new: int, eos: frozenset[int], **options: object) -> Engine:
    decoding = Decoding(max_new_tokens=new, **options)  # type: ignore[arg-type]
    cache = decoder.new_cache(positions + SCRATCH)
    return Engine(decoder, cache, decoding, eos, ModelProbe(decoder, cache, PROFILE))


def probe_in(folder: Path, decoder: Decoder, **options: object) -> ModelProbe:
    """Return a probe for offline searches, which it stores in a folder."""
    probe = engine_for(decoder, 40, 30, frozenset(range(20)), **options).probe
    probe.origin = Origin(folder, "tiny", "w", "none", "float64", "cpu", 0, "")
    return probe


def prepare(engine: Engine, method: Method) -> None:
    """Check and prepare a method, calibrated if necessary on one-token prompts of two domains."""
    samples = []
    if isinstance(method, Calibrated):
        samples = [Sample([first + i], d) for d, first in (("a", 3), ("b", 30)) for i in range(method.calibration)]
    method.check(DIMS)
    with TemporaryDirectory() as folder, torch.inference_mode():
        engine.probe.origin = Origin(
            Path(folder), DIMS.name, "random", "none", str(engine.decoder.weights.dtype), "cpu", 0, ""
        )
        method.prepare(engine.probe, samples)


def decode(
    decoder: Decoder,
    method: Method,
    prompt: Sequence[int],
    new: int,
    eos: frozenset[int] = frozenset(),
    spare: int | None = None,
    seed: int = 0,
    **options: object,
) -> Generation:
    """One prompt as a run decodes it: checked, prepared, generated.

    Args:
        spare: positions of the context beyond the prompt; None: `new`.
    """
    engine = engine_for(decoder, len(prompt) + (new if spare is None else spare), new, eos, **options)
    prepare(engine, method)
    return engine.generate(method, prompt, seed)


@lru_cache(maxsize=32)
def likes_zero(decoder: Decoder) -> Decoder:
    """The model with token id 0 a likely prediction: a padding id that is not kept apart shows."""
    operators = decoder.operators(decoder.arithmetic)
    head = operators.embed(decoder.weights.head, torch.arange(VOCAB)).to(decoder.weights.dtype)
    head[0] *= 6
    changed = type(decoder)(decoder.arithmetic, replace(decoder.weights, head=operators.pack(head)))
    for bits in decoder.bits:
        changed.quantise(bits)
    return changed


def loaded(decoders: Load, family: str, compiled: bool) -> Decoder:
    """A tiny decoder whose outputs do not depend on rounding: compiled, if possible, or PyTorch's in float64.

    The compiled one gives a node the same bits in every pass (test_bits), in a sixth of the time.
    """
    return decoders(family, torch.float32, "native") if compiled and not native_problem() else decoders(family)


def check_greedy(make: Callable[[random.Random], Method], decoders: Load, cases: int = CASES) -> int:
    """Greedy output and finish reason equal AR's over `cases` random cases, every fifth with PyTorch's operators.

    Every case draws family, prompt (even of one token), EOS id, length limit, room in the context and, by `make`, the
    method's settings.

    Returns:
        Accepted draft tokens over all cases, to show that the cases exercise acceptance.
    """
    accepted = 0
    for seed in range(cases):
        rng = random.Random(seed)
        decoder = loaded(decoders, rng.choice(FAMILIES), seed % 5 > 0)
        if rng.random() < 0.2:
            decoder = likes_zero(decoder)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 7, 30]))]
        new, spare = rng.choice([1, 2, 9, 30]), rng.choice([None, None, 5])
        eos = frozenset([rng.randrange(VOCAB)]) if rng.random() < 0.5 else frozenset[int]()
        if seed not in _greedy:
            _greedy[seed] = decode(decoder, AR(), prompt, new, eos, spare)
        expected = _greedy[seed]
        made = decode(decoder, make(rng), prompt, new, eos, spare)
        assert made.output == expected.output, f"case {seed}"
        assert made.finish_reason == expected.finish_reason, f"case {seed}"
        accepted += sum(step.accepted_len for step in made.steps)
    return accepted


def check_sampled(
    make: Callable[[], Method], decoders: Load, draws: int = DRAWS, position: int = 2, kernels: str = "auto"
) -> None:
    """Tokens at `position` of sampled outputs are distributed as AR's (T = 0.6, top-p = 0.95), by chi-square."""
    options = {"mode": "sample", "temperature": 0.6, "top_p": 0.95}

    def engine_with(kernels: str) -> Engine:
        decoder = decoders("llama", torch.float32, kernels)
        return engine_for(decoder, 2 + LONGEST_SAMPLE, LONGEST_SAMPLE, frozenset(), **options)

    if not _sampled:
        engine = engine_with("auto")
        _sampled.extend(engine.generate(AR(), [4, 5], 2 * seed).output for seed in range(DRAWS))
    engine, method = engine_with(kernels), make()
    prepare(engine, method)
    made = [engine.generate(method, [4, 5], 2 * seed + 1, max_new=position + 1).output for seed in range(draws)]
    seen = torch.zeros(2, VOCAB)
    for arm, outputs in enumerate((_sampled[:draws], made)):
        seen[arm] = torch.bincount(torch.tensor([output[position] for output in outputs]), minlength=VOCAB)
    common = seen.sum(0) >= 20
    rest = seen[:, ~common].sum(1, keepdim=True)
    table = torch.cat([seen[:, common], rest], dim=1).numpy()
    assert chi2_contingency(table[:, table.sum(0) > 0]).pvalue > 1e-3
