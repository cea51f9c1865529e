"""methods/README.md: its table of what a method may call when, each cell tried while decoding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from methods.ar import AR
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample, SearchUse, Taps, Verification
from ssd_bench.contract.tree import TokenTree
from ssd_bench.contract.window import Window
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from tests.conftest import VOCAB
from tests.lossless import Load, decode, engine_for, method_of, prepare
from tests.methods.test_fidelity import PRESETS
from tests.runs import executed, local_model

README = (Path(__file__).parents[2] / "methods" / "README.md").read_text(encoding="utf-8")
PROMPT, NEW = [5, 6, 7], 6
HOOKS = ("prepare", "start", "propose", "observe")


def table() -> dict[tuple[str, str], str]:
    """Return the README's table, by call and hook."""
    part = README.split("\n## What may be called when\n")[1].split("\n## ")[0]
    header, _, *rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    hooks = [re.sub(r"\W", "", name) for name in header[1:]]
    found = {}
    for names, *cells in rows:
        for name in re.findall(r"`probe\.(\w+)`", names):
            found |= {(name, hook): cell for hook, cell in zip(hooks, cells, strict=True)}
    return found


TABLE = table()


def calls(probe: Probe, name: str, committed: int) -> Any:
    """A method's possible calls, with arguments for `committed` tokens in the cache."""
    hidden = probe.embed(PROMPT)
    arguments: dict[str, tuple[Any, ...]] = {
        "embed": (PROMPT,),
        "apply_sublayer": (1, hidden[None], committed),
        "predict": (hidden,),
        "mean_cosine": (hidden[None], hidden.float()),
        "run_sublayers": ((0, 3), hidden, committed),
        "predict_confident": (hidden,),
        "final_norm": (hidden,),
        "logits": (hidden,),
        "token_logits": (hidden, torch.tensor([4, 9])),
        "trial": (AR(), PROMPT, 3),
        "prompt_states": (PROMPT, (0, 2)),
        "top2_gap": (PROMPT,),
        "report_search": (SearchUse("search", 3, 1, 0.5),),
    }
    asked = getattr(probe, name)
    return asked(*arguments[name]) if name in arguments else asked


class Asking(AR):
    """AR that calls something of the probe in one hook, and keeps what that raised."""

    def __init__(self, name: str, hook: str):
        super().__init__("asking")
        self.asked, self.hook, self.raised = name, hook, list[Exception | None]()

    def _in(self, hook: str, committed: int) -> None:
        if hook == self.hook:
            try:
                calls(self.kept, self.asked, committed)
                self.raised.append(None)
            except RuntimeError as error:
                self.raised.append(error)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self.kept = probe
        self._in("prepare", 0)

    def start(self, prefill: Prefill) -> None:
        self._in("start", len(prefill.prompt))

    def propose(self, context: Context) -> TokenTree:
        self._in("propose", context.length)
        return super().propose(context)

    def observe(self, verification: Verification, probe: Probe) -> None:
        assert probe is self.kept
        self._in("observe", verification.length)


def test_the_table_has_all_that_there_is() -> None:
    public = {name for name in vars(ModelProbe) if not name.startswith("_")} | {"n_layers", "latency", "origin"}
    assert {name for name, _ in TABLE} == public
    assert {hook for _, hook in TABLE} == set(HOOKS) and set(TABLE.values()) == {"yes", "kept", "error"}


@pytest.mark.parametrize("hook", HOOKS)
def test_what_it_says_is_so(hook: str, decoder: Decoder) -> None:
    """Allowed calls change nothing that decoding sees; others are refused before they do."""
    expected = decode(decoder, AR(), PROMPT, NEW).output
    for name in dict.fromkeys(name for name, _ in TABLE):
        method = Asking(name, hook)
        assert decode(decoder, method, PROMPT, NEW).output == expected, name
        assert method.raised
        for raised in method.raised:
            assert (raised is None) == (TABLE[name, hook] != "error"), (name, raised)
            assert raised is None or "is being decoded" in str(raised)


def test_a_prompt_that_failed_does_not_hold_the_cache(decoder: Decoder) -> None:
    class Failing(AR):
        def propose(self, context: Context) -> TokenTree:
            raise KeyboardInterrupt

    engine: Engine = engine_for(decoder, len(PROMPT) + NEW, NEW, frozenset())
    with pytest.raises(KeyboardInterrupt):
        engine.generate(Failing(), PROMPT)
    assert engine.probe.top2_gap(PROMPT) >= 0


class Prepared(AR):
    """AR that cannot decode before it is prepared, and counts its prompts."""

    states: ClassVar[list[bytes]] = []

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self.begun, self._kept = 0, probe

    def start(self, prefill: Prefill) -> None:
        self.begun += 1
        self._kept.embed(prefill.prompt)

    def state(self) -> bytes:
        self.states.append(str(self.begun).encode())
        return self.states[-1]

    def restore(self, state: bytes) -> None:
        self.begun = int(state)


@pytest.fixture
def short(small_checkpoint: Path) -> list[str]:
    """Options of a warmed-up run of two short prompts."""
    return [*local_model(small_checkpoint), "task=gsm8k", "limit=2", "decode.max_new_tokens=4", "hardware.warmup=1"]


def test_what_warms_up_is_prepared_and_the_method_learns_nothing_from_it(short: list[str], tmp_path: Path) -> None:
    Prepared.states.clear()
    executed(tmp_path, *short, "method=ar", "method.name=prepared", f"method._target_={__name__}.Prepared")
    assert Prepared.states == [b"1", b"2"]


FIRST_PRESETS = sorted({settings["_target_"]: name for name, settings in reversed(PRESETS.items())}.values())
SHORT = {  # what a method does before a run
    "knn_ssd": ("method.calibration=2", "method.search.iterations=1", "method.search.new_tokens=4"),
    "layerskip_swept": ("method.calibration=1", "method.new_tokens=4"),
    "oracle": ("method.calibration=1", "method.new_tokens=4", "method.skipped=1"),
    "self_ssd": ("method.calibration=1", "method.search.iterations=1", "method.search.new_tokens=4"),
}


@pytest.mark.parametrize("preset", FIRST_PRESETS)
def test_every_method_can_be_copied_when_it_is_prepared(preset: str, short: list[str], tmp_path: Path) -> None:
    run = executed(tmp_path, *short, f"method={preset}", *SHORT.get(preset, ()))
    assert set(run.prompts["lossless"].dropna()) == {"identical"}


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("asd", {"min_similarity": -1.0, "refresh": 2, "stop_step": 0.5}),
        ("clasp", {"interval": 3, "draft_len": 2}),
        ("clasp_knapspec", {"interval": 3, "draft_len": 2}),
        ("del", {}),
        ("jacobi", {"block": 8}),
        ("knapspec", {"interval": 4, "draft_len": 2, "min_similarity": -1.0}),
        ("prompt_lookup_hf", {}),
    ],
)
def test_prompts_share_no_state(preset: str, options: dict[str, Any], decoders: Load) -> None:
    engine, method = engine_for(decoders("qwen3"), 60, 30, frozenset()), method_of(preset, **options)
    prepare(engine, method)
    first, _, again = (engine.generate(method, prompt).steps for prompt in (PROMPT, [8, 9, 5, 6], PROMPT))
    for one, other in zip(first, again, strict=True):
        assert (one.layer_set, one.draft_len, one.tree_nodes) == (other.layer_set, other.draft_len, other.tree_nodes)
        assert (one.emitted, one.stop_reason, one.estimate) == (other.emitted, other.stop_reason, other.estimate)


class Answering(AR):
    """AR but for one of its answers."""

    def __init__(self, **answers: Any):
        super().__init__("answering")
        self.answers = answers
        self.taps = answers.get("taps", Taps())

    def propose(self, context: Context) -> Any:
        return self.answers["propose"](context) if "propose" in self.answers else super().propose(context)

    def observe(self, verification: Verification, probe: Probe) -> Any:
        return self.answers.get("observe")


def tree(*tokens: Any) -> Callable[[Context], TokenTree]:
    return lambda context: TokenTree.chain([context.output[-1], *tokens])


def draft(*arguments: Any) -> Callable[[Context], LayerDraft]:
    return lambda context: LayerDraft(*arguments)


def windowed(window: Any) -> Callable[[Context], LayerDraft]:
    return lambda context: LayerDraft(LayerSet(4, window=window), 2)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"propose": lambda _: None}, r"answering\.propose=None .* a TokenTree or a LayerDraft"),
        ({"propose": lambda _: [5, 6]}, r"answering\.propose=\[5, 6\] .* a TokenTree or a LayerDraft"),
        ({"propose": lambda _: TokenTree((60,), (-1,))}, r"TokenTree\.tokens=\(60,\) .* its root, context.output"),
        ({"propose": tree(VOCAB)}, rf"TokenTree\.tokens=.*{VOCAB}\) .* integers from 0 to {VOCAB - 1}"),
        ({"propose": tree(-1)}, r"TokenTree\.tokens=.*-1\) .* integers from 0"),
        ({"propose": tree("the")}, r"TokenTree\.tokens=.*'the'\) .* integers from 0"),
        (
            {"propose": lambda _: TokenTree(torch.tensor([5]), (-1,))},
            r"TokenTree\.tokens=tensor.* a tuple of token ids",
        ),
        ({"propose": draft(LayerSet(2), 3)}, r"LayerDraft\.layer_set=LayerSet.* n_layers=4"),
        ({"propose": draft(3, LayerSet(4))}, r"LayerDraft\.layer_set=3 .* n_layers=4"),
        ({"propose": draft(LayerSet(4), -2)}, r"LayerDraft\.max_len=-2 .* at least 0"),
        ({"propose": draft(LayerSet(4), 2.5)}, r"LayerDraft\.max_len=2.5 .* an integer"),
        ({"propose": windowed(Window(-1, 4))}, r"layer_set\.window=Window\(sinks=-1, .* at least 0 sinks"),
        ({"propose": windowed(Window(4, 0))}, r"layer_set\.window=.*recent=0\) .* at least 1 recent position"),
        ({"propose": windowed(Window(4, 2.5))}, r"layer_set\.window=.*recent=2\.5\) .* integers"),  # type: ignore[arg-type]
        ({"propose": windowed((4, 252))}, r"layer_set\.window=\(4, 252\) .* None, or a Window"),
        ({"observe": 3.0}, r"answering\.observe=3.0 .* an Estimate after a search, or None"),
        ({"taps": None}, r"answering\.taps=None .* Taps"),
        ({"taps": Taps(verify=True)}, r"answering\.taps\.verify=True .* boundaries in \[0, 8\]"),  # type: ignore[arg-type]
        ({"taps": Taps(verify=(0, 9))}, r"answering\.taps\.verify=\(0, 9\) .* boundaries in \[0, 8\]"),
        ({"taps": Taps(prefill=(-1,))}, r"answering\.taps\.prefill=\(-1,\) .* boundaries in \[0, 8\]"),
    ],
)
def test_an_answer_that_cannot_be_decoded_is_refused(answers: dict[str, Any], message: str, decoder: Decoder) -> None:
    for mode in ("greedy", "sample"):
        engine = engine_for(decoder, 60, NEW, frozenset(), mode=mode)
        with pytest.raises(ConfigError, match=message):
            engine.generate(Answering(**answers), PROMPT)
        assert len(engine.generate(AR(), PROMPT).output) == NEW


def test_taps_that_change_are_looked_at_anew(decoder: Decoder) -> None:
    method = Answering()

    def later(context: Context) -> TokenTree:
        method.taps = Taps(verify=(0,) if context.step < 3 else (9,))
        return TokenTree((context.output[-1],), (-1,))

    method.answers["propose"] = later
    with pytest.raises(ConfigError, match=r"taps\.verify=\(9,\)"):
        decode(decoder, method, PROMPT, NEW)


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_no_token_is_a_methods_to_choose(mode: str, decoder: Decoder) -> None:
    """Writes over its inputs stay its own."""

    def spoils(context: Context) -> LayerDraft:
        context.output[:] = [5] * 20  # type: ignore[index]
        return LayerDraft(LayerSet(4, [2, 3]), 2)  # type: ignore[arg-type]

    class Spoiling(Answering):
        def observe(self, verification: Verification, probe: Probe) -> None:
            verification.emitted[:] = verification.path[:] = [5] * 9  # type: ignore[index]

    engine = engine_for(decoder, 60, NEW, frozenset(), mode=mode)
    methods = Spoiling(propose=spoils), Answering(propose=draft(LayerSet(4, frozenset([2, 3])), 2))
    made = [engine.generate(method, PROMPT) for method in methods]
    assert made[0].output == made[1].output and len(made[0].output) == NEW
    counts = [[(step.emitted, step.accepted_len) for step in generation.steps] for generation in made]
    assert counts[0] == counts[1]
