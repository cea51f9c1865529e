"""Ends of outputs: what a method learns from the last step, and the end of the model's context."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from methods.ar import AR
from methods.clasp import CLaSp
from methods.dynamic_exit import DEL
from methods.knapspec import KnapSpec
from methods.lookahead import Lookahead
from methods.swift import SWIFT
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Method, Probe, Verification
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.errors import ConfigError
from ssd_bench.model.kv_cache import BUCKET
from ssd_bench.results.digest import summarise
from tests.conftest import LAYERS, SIZES, VOCAB
from tests.lossless import FAMILIES, Load, decode, loaded
from tests.runs import executed, local_model, planned

CASES = 24
ANEW: dict[str, Callable[[], Method]] = {
    "knapspec": lambda: KnapSpec(capture_steps=1, interval=1),
    "clasp": lambda: CLaSp(interval=1),
    "del": DEL,
    "lookahead": lambda: Lookahead(window=3, ngram=3, guesses=3),
}


class Refusing:
    """A probe for a step after which nothing may run."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"probe.{name} was asked for after the output had ended")


def watched(method: Method, seen: list[tuple[bool, bool]]) -> Method:
    """The method, noting of each step whether it was the last, and whether anything was estimated."""
    observe = method.observe

    def noting(verification: Verification, probe: Probe) -> Estimate | None:
        if verification.last:
            assert verification.emitted, "a step that ends an output has emitted its end"
        estimate = observe(verification, Refusing() if verification.last else probe)  # type: ignore[arg-type]
        seen.append((verification.last, estimate is not None))
        return estimate

    method.observe = noting  # type: ignore[method-assign]
    return method


@pytest.mark.parametrize("name", ANEW)
def test_nothing_is_searched_after_the_end(name: str, decoders: Load) -> None:
    """However an output ends, and whatever the settings: exactly the final step is the last."""
    ends, estimates = set(), 0
    for seed in range(CASES):
        rng = random.Random(seed)
        decoder = loaded(decoders, rng.choice(FAMILIES), compiled=True)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([2, 7, 30]))]
        new, spare = rng.choice([2, 9, 30]), rng.choice([None, 5])
        eos = frozenset([rng.randrange(VOCAB)]) if rng.random() < 0.6 else frozenset[int]()
        seen: list[tuple[bool, bool]] = []
        made = decode(decoder, watched(ANEW[name](), seen), prompt, new, eos, spare)
        assert made.output == decode(decoder, AR(), prompt, new, eos, spare).output
        assert [last for last, _ in seen] == [False] * (len(seen) - 1) + [True] * bool(seen)
        assert not seen or not seen[-1][1]
        ends.add(made.finish_reason)
        estimates += sum(estimated for _, estimated in seen)
    assert ends == {"eos", "length", "context"}
    assert estimates or name in ("clasp", "lookahead")


def test_what_lasts_goes_on_learning(decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that outlives the prompt also looks at a candidate after its last step."""
    method, events = SWIFT(context_window=4, max_score=1.0), list[object]()
    observe, score = method.observe, method._score_candidate
    monkeypatch.setattr(method, "observe", lambda seen, probe: [events.append(seen.last), observe(seen, probe)][1])
    monkeypatch.setattr(method, "_score_candidate", lambda *given: [events.append("scored"), score(*given)][1])
    decode(decoders(), method, [3, 5, 8, 13], 12)
    assert events[-2:] == [True, "scored"]


# ---- outputs that may be longer than the context: they end there and say so; the cache holds no more than that


CONTEXT = 900


@pytest.fixture(scope="module")
def short_context(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 900 positions that never ends an output by itself."""
    folder = tmp_path_factory.mktemp("short") / "model"
    shutil.copytree(small_checkpoint, folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        content.pop("eos_token_id")
        (folder / name).write_text(json.dumps(content | {"max_position_embeddings": CONTEXT}), encoding="utf-8")
    return folder


def test_aime_with_32k_new_tokens_ends_at_the_context(short_context: Path, tmp_path: Path) -> None:
    rows = [{"id": str(i), "problem": f"what is 1 + {i} " * 20, "answer": "2"} for i in range(2)]
    (tmp_path / "aime24.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    options = ("data=local", f"data.root={tmp_path}", "method=jacobi", "decode.max_new_tokens=32768")
    run = executed(tmp_path / "runs", "task=aime24", *local_model(short_context), *options)
    assert set(run.prompts["finish_reason"]) == {"context"}
    # the last token's own keys and values are never needed: it may stand one position past the context
    assert (run.prompts["prompt_len"] + run.prompts["new_tokens"] == CONTEXT + 1).all()
    method_rows = run.prompts[run.prompts["arm"] == "method"]
    assert set(method_rows["lossless"]) == {"identical"}
    summary = summarise(run).row
    assert summary["finish_context"] == 2
    assert any("2 of 2 outputs stopped at the model's context length" in text for text in summary["warnings"])
    row_bytes = 2 * LAYERS * SIZES["num_key_value_heads"] * 8 * 4  # keys and values, head width 8, float32
    model = run.header.model
    assert model.cache_rows == min(CONTEXT + SCRATCH, BUCKET) and model.cache_bytes == (CONTEXT + SCRATCH) * row_bytes


def test_a_task_that_clips_keeps_room_for_the_whole_answer(short_context: Path, tmp_path: Path) -> None:
    options = ("task=cnn_dm", "decode.max_new_tokens=800", *local_model(short_context))
    with pytest.raises(ConfigError, match=r"decode\.max_new_tokens=800 .*at most 649.*reserve of 250"):
        planned(tmp_path, *options)
