"""Work of a step: counts of engine and probe, against independent counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from methods.ar import AR
from ssd_bench.contract.generation import Generation, Work, WorkKind
from ssd_bench.engine.meter import Meter
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.work import COMPARISON, HEAD, Sum, sum_calls
from ssd_bench.records.schema import ANSWER
from tests.conftest import LAYERS, VOCAB
from tests.lossless import Load, decode, engine_for, method_of, prepare
from tests.runs import executed, local_model

PRESETS = [
    *("ar", "fixed_layers", "swift", "knapspec", "clasp", "conflayers", "del", "layerskip", "jacobi", "lookahead"),
    *("prompt_lookup", "suffix_tree", "window_draft", "adaptive"),
]
SETTINGS = {"knapspec": {"interval": 4}, "clasp": {"skip_blocks": 2}}
PROMPT = [3, 5, 8, 3, 5, 8, 3, 5, 11, 7, 3, 5]


@contextmanager
def counted(decoder: Decoder) -> Iterator[Counter[str]]:
    """Count nodes through attentions, MLPs and the head at the operators, below the decoder's log."""
    counts: Counter[str] = Counter()

    def counting(owner: Any, operator: str, name: str, count: Callable[..., int]) -> None:
        original = getattr(owner, operator)
        patch.setattr(owner, operator, lambda *given: [counts.update({name: count(*given)}), original(*given)][1])

    def entries(x: torch.Tensor, norm: torch.Tensor, eps: float, matrix: Any, *_: object) -> int:
        return x.numel() // x.shape[-1] * matrix.shape[0] if norm is decoder.weights.norm else 0

    with pytest.MonkeyPatch.context() as patch:
        counting(decoder, "_attention", "attentions", lambda layer, block, hidden, *_: len(hidden))
        counting(decoder, "_attend_branches", "attentions", lambda layer, block, streams, *_: streams[..., 0].numel())
        counting(decoder, "_mlp", "mlps", lambda block, hidden: len(hidden))
        counting(decoder._ops, "norm_linear", "heads", entries)
        yield counts


def totals(parts: list[Work]) -> dict[str, float]:
    """Nodes through attentions and MLPs, and entries of logits."""
    return {
        "attentions": sum(w.calls * w.rows * w.attentions for w in parts),
        "mlps": sum(w.calls * w.rows * w.mlps for w in parts),
        "heads": sum(w.calls * w.rows * w.heads for w in parts) * VOCAB,
    }


def all_work(generation: Generation) -> list[Work]:
    return [*generation.prefill_work, *(w for step in generation.steps for w in step.work)]


def part(step: Any, name: str) -> list[Work]:
    return [w for w in step.work if w.part == name]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_node_that_an_operator_sees_is_counted(preset: str, decoders: Load) -> None:
    decoder = decoders("llama")
    method = method_of(preset, **SETTINGS.get(preset, {}))
    engine = engine_for(decoder, len(PROMPT) + 40, 40, frozenset())
    prepare(engine, method)
    with counted(decoder) as counts:
        generation = engine.generate(method, PROMPT)
    total = totals(all_work(generation))
    assert total["attentions"] == counts["attentions"] and total["mlps"] == counts["mlps"]
    assert total["heads"] == pytest.approx(counts["heads"])
    assert decoder.log is None


def test_ar_runs_one_full_pass_a_step(decoders: Load) -> None:
    generation = decode(decoders("llama"), AR(), PROMPT, 10)
    for step in generation.steps:
        (work,) = step.work
        assert work.ms is not None and 0 < work.ms <= step.verify_ms
        assert work == Work(1, LAYERS, LAYERS, 1.0, 2, part="verify", calls=1, context=step.context_len, ms=work.ms)


@pytest.mark.parametrize("window", [None, [2, 4]])
def test_drafts_run_their_sets_once_a_token(window: list[int] | None, decoders: Load) -> None:
    method = method_of("fixed_layers", ratio=0.5, draft_len=3, stop_below=0.0, draft_window=window)
    generation = decode(decoders("llama"), method, PROMPT, 20)
    assert max(step.draft_len for step in generation.steps) == 3
    for step in [step for step in generation.steps if step.draft_len]:  # the output may end sooner
        (drafted,), (verified,) = part(step, "draft"), part(step, "verify")
        assert step.layer_set is not None and drafted.calls == step.draft_len
        assert (drafted.rows, drafted.attentions, drafted.mlps) == (1, step.layer_set.n_attn, step.layer_set.n_mlp)
        contexts = [step.context_len + i for i in range(step.draft_len)]
        assert drafted.context == sum(min(c, 5) if window else c for c in contexts) / step.draft_len  # and its own row
        assert (verified.calls, verified.rows, verified.context) == (1, step.tree_nodes, step.context_len)


def test_saved_states_leave_out_what_drafting_ran(decoders: Load) -> None:
    early = method_of("fixed_layers", pattern="exit", ratio=0.5, draft_len=3, stop_below=0.0, reuse_prefix=True)
    step = decode(decoders("llama"), early, PROMPT, 20).steps[0]
    last, rest = part(step, "verify")
    assert (last.rows, last.attentions + last.mlps, last.heads) == (1, LAYERS, 0)
    assert (rest.rows, rest.attentions + rest.mlps, rest.heads) == (step.tree_nodes, LAYERS, 1)


def test_a_search_that_runs_twice_costs_twice(decoders: Load) -> None:
    once, twice = (method_of("knapspec", interval=4) for _ in range(2))
    search = twice.search
    twice.search = lambda *arguments: (search(*arguments), search(*arguments))[1]
    overheads = []
    for method in (once, twice):
        steps = decode(decoders("llama"), method, PROMPT, 20).steps
        overheads.append(totals([w for step in steps for w in part(step, "overhead")]))
    assert overheads[0]["attentions"] > 0
    assert overheads[1] == {name: 2 * count for name, count in overheads[0].items()}


def test_outputs_of_a_preparation_are_counted_in_it(decoders: Load) -> None:
    decoder = decoders("llama")
    engine = engine_for(decoder, 60, 20, frozenset())
    meter = Meter(decoder)
    with meter.counting(), counted(decoder) as counts, torch.inference_mode():
        engine.probe.trial(AR(), PROMPT, 12)
        engine.probe.prompt_states(PROMPT, [0])
    assert totals(meter.total("prepare")) == {name: pytest.approx(count) for name, count in counts.items()}
    assert all(work.part == "prepare" for work in meter.total("prepare"))


def test_trees_and_parts_of_the_vocabulary(decoders: Load) -> None:
    decoder = decoders("llama")
    engine = engine_for(decoder, 60, 20, frozenset())
    meter = Meter(decoder)
    with torch.inference_mode(), meter.counting():
        start = meter.moment()
        streams = engine.probe.embed([1, 2, 3])
        engine.probe.token_logits(streams, torch.tensor([4, 5]))
        engine.probe.run_sublayers([0, 3], streams, 0)
        engine.probe.apply_sublayer(1, streams.view(3, 1, -1), 0)
        work = meter.work("overhead", (start, meter.moment()))
    assert [(w.rows, w.attentions, w.mlps, round(w.heads * VOCAB)) for w in work] == [
        (3, 0, 0, 2),
        (3, 1, 1, 0),
        (3, 0, 1, 0),
    ]


def test_calls_join_what_the_host_launches_without_waiting() -> None:
    def logged(*calls: tuple[tuple[int, ...], int, float]) -> list[WorkKind]:
        return list(sum_calls((sublayers, rows, 7, heads, 0.0, 1.0, ()) for sublayers, rows, heads in calls))

    attention, mlp, head, comparison = ((0,), 4, 0.0), ((1,), 4, 0.0), (HEAD, 4, 1.0), (COMPARISON, 4, 0.0)
    nothing = ((), 4, 0.0)
    assert logged(attention, mlp, head) == [WorkKind(4, 1, 1, 1.0, 3)]
    assert logged(attention, comparison, mlp) == [
        WorkKind(4, 1, 0, 0, 1),
        WorkKind(4, 0, 0, 0, 1),
        WorkKind(4, 0, 1, 0, 1),
    ]
    assert logged(comparison, head) == [WorkKind(4, 0, 0, 0, 1), WorkKind(4, 0, 0, 1.0, 1)]
    assert logged(nothing, head) == [WorkKind(4, 0, 0, 1.0, 2)]  # a draft that skips every sublayer
    assert logged(attention, ((1,), 5, 0.0)) == [WorkKind(4, 1, 0, 0, 1), WorkKind(5, 0, 1, 0, 1)]
    assert logged(((0, 1), 4, 0.0), mlp) == [WorkKind(4, 1, 1, 0, 1), WorkKind(4, 0, 1, 0, 1)]  # a pass is one launch
    twice = sum_calls([((0, 1), 4, 6, 0.0, 0.0, 1.0, ()), ((0, 1), 4, 8, 0.0, 2.0, 3.0, ())])
    assert twice == {WorkKind(4, 1, 1, 0, 1): Sum(2, 14, 2.0)}


def test_the_work_of_a_step_does_not_depend_on_the_backend(decoders: Load) -> None:
    method = method_of("fixed_layers", ratio=0.25, draft_len=3, stop_below=0.0)
    first = [decode(decoders("llama", torch.float32, kernels), method, PROMPT, 16) for kernels in ("torch", "native")]
    torch_work, native_work = (
        [replace(work, ms=None) for work in (*generation.prefill_work, *generation.steps[0].work)]
        for generation in first
    )
    assert torch_work == native_work


def test_a_run_records_its_work(small_checkpoint: Path, tmp_path: Path) -> None:
    options = ("task=gsm8k", "data=sample", "limit=2", "decode.max_new_tokens=24", "method.search.iterations=2")
    run = executed(tmp_path, *local_model(small_checkpoint), "method=self_ssd", *options)
    steps = run.steps.set_index([*ANSWER, "step"])
    verified = run.work[run.work["part"] == "verify"].set_index([*ANSWER, "step"])
    assert (verified["rows"] == steps["tree_nodes"].loc[verified.index]).all() and len(verified) == len(steps)
    prefill = run.work[(run.work["part"] == "prefill") & (run.work["attentions"] > 0)]
    nodes = (prefill["calls"] * prefill["rows"]).groupby([prefill[name] for name in ANSWER]).sum()
    assert (nodes == run.prompts.set_index(list(ANSWER))["prompt_len"].loc[nodes.index]).all()
    assert run.header.prepare_work and {work.part for work in run.header.prepare_work} == {"prepare"}
    assert sum(work.ms or 0 for work in run.header.prepare_work) <= (run.header.prepare_ms or 0)
    # a pass is part of its span: host time that is left is never negative
    spans = run.work[run.work["step"] > 0].groupby([*ANSWER, "step"])["ms"].sum()
    assert (spans <= steps[["draft_ms", "verify_ms", "policy_ms"]].sum(axis=1).loc[spans.index] + 1e-6).all()
