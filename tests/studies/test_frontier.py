"""Layer sets as points of draft cost and α: scored on AR's own tokens, next to the best sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from methods.ar import AR
from methods.oracle import all_layer_sets
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.window import Window
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.machine import Profile
from ssd_bench.cost.reference import reference_machine
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from ssd_bench.papers.ssd_bench import plane
from ssd_bench.papers.ssd_bench.plane import Plane, Point
from ssd_bench.records.reader import Run
from studies import frontier
from studies.frontier import beam, costs, main, pareto_front
from studies.set_scores import DRAFT_LEN, SetScores
from tests.conftest import LAYERS
from tests.lossless import engine_for
from tests.runs import executed, local_model
from tests.sources import write_rows

PROMPTS = [[5, 6, 7], [40, 41], [9]]
NEW = 2 * DRAFT_LEN + 3
MACHINE = Profile(Latency(0.4, 0.01, 0.2, draft_rest_ms=0.3, draft_start_ms=0.8))


@pytest.fixture
def engine(decoders: Callable[..., Decoder]) -> Engine:
    return engine_for(decoders(), 40, NEW, frozenset())


@pytest.fixture
def scores(engine: Engine) -> SetScores:
    with torch.inference_mode():
        outputs = [engine.generate(AR(), prompt).output for prompt in PROMPTS]
    return SetScores(engine, PROMPTS, outputs)


def test_alpha_is_what_full_passes_with_right_tokens_say(engine: Engine, scores: SetScores) -> None:
    """Run the full model up to a draft's beginning, then the set over the drafted tokens, in separate passes.

    A position's keys and values depend on the layers that ran there, so every prediction is made again from the prompt.
    """
    layer_set, decoder = LayerSet(LAYERS, frozenset([2, 5])), engine.decoder
    right = 0
    with torch.inference_mode():
        for prompt, output in scores._texts:
            for at in range(len(output) - 1):
                begin = at - at % DRAFT_LEN
                cache = decoder.new_cache(80)
                decoder.prefill(torch.tensor([*prompt, *output[:begin]]), cache)
                probe = ModelProbe(decoder, cache)
                hidden = probe.embed(output[begin : at + 1])[None]
                for i in layer_set.kept:
                    hidden = probe.apply_sublayer(i, hidden, len(prompt) + begin)
                right += int(probe.predict(hidden)[0, -1]) == output[at + 1]
    assert scores([layer_set]) == [right / scores.tokens]
    assert 0 < right < scores.tokens


def test_a_window_of_the_whole_text_scores_as_none(scores: SetScores) -> None:
    """Drafts of the narrowest window predict less, and leave nothing for later scores."""
    for layer_set in (LayerSet.full(LAYERS), LayerSet(LAYERS, frozenset([2, 5])), LayerSet.exit(LAYERS, 2)):
        narrow, wide = (scores.token_by_token(replace(layer_set, window=w)) for w in (Window(0, 1), Window(3, 100)))
        assert wide == scores.token_by_token(layer_set) == scores([layer_set])[0] != narrow


def test_a_wide_beam_finds_what_trying_all_sets_finds(scores: SetScores) -> None:
    everything = dict(zip(all_layer_sets(LAYERS), scores(all_layer_sets(LAYERS)), strict=True))
    exhaustive, scores.alphas = scores.alphas, {}
    beam(LAYERS, scores, width=10**6)
    assert all(exhaustive[layer_set] == alpha for layer_set, alpha in scores.alphas.items())
    missed = set(everything) - set(scores.alphas) - {LayerSet.full(LAYERS)}
    assert not missed or min(len(s.skipped) for s in missed) > max(
        len(s.skipped) for s, alpha in scores.alphas.items() if alpha >= frontier.LEAST
    )


def test_a_narrow_beam_is_never_above_all_sets(scores: SetScores) -> None:
    best = {}
    for layer_set, alpha in zip(all_layer_sets(LAYERS), scores(all_layer_sets(LAYERS))):
        best[len(layer_set.skipped)] = max(alpha, best.get(len(layer_set.skipped), 0.0))
    scores.alphas = {}
    beam(LAYERS, scores, width=1)
    assert all(alpha <= best[len(layer_set.skipped)] for layer_set, alpha in scores.alphas.items())
    assert len(scores.alphas) <= sum(2 * LAYERS - i for i in range(2 * LAYERS))


def test_few_tries_score_one_set_of_each_sublayer_and_then_so_many(scores: SetScores) -> None:
    beam(LAYERS, scores, width=1, least=0.0, tries=2)
    sizes = [sum(len(one.skipped) == n for one in scores.alphas) for n in range(1, 2 * LAYERS + 1)]
    assert sizes == [2 * LAYERS, *[2] * (2 * LAYERS - 2), 1]
    alone = {min(one.skipped): alpha for one, alpha in scores.alphas.items() if len(one.skipped) == 1}
    best, *second = sorted(alone, key=lambda i: -alone[i])[:3]
    assert {one.skipped for one in scores.alphas if len(one.skipped) == 2} == {frozenset([best, i]) for i in second}


def test_costs_are_those_of_the_profile_in_plain_steps() -> None:
    """Verification is one plain step (KnapSpec) without measured passes: 2 blocks of 1.2 and 0.4 ms. A draft: 0.8."""
    attn, mlp, remainder, verify = costs(MACHINE, 2, 100.0)
    assert (attn, mlp, remainder) == pytest.approx((1.2 / 3.2, 0.4 / 3.2, 0.3 / 3.2))
    assert verify[0] == 1.0 and set(verify[1:]) == {1.25}


def test_the_speedup_is_the_best_of_all_draft_lengths() -> None:
    empty_plane = Plane("m", "t", 2, "exhaustive", 1, 1, 1.0, (1.0, 1.1, 1.4), (), ())
    by_hand = [1.0, (1 + 0.8) / (0.25 + 1.1), (1 + 0.8 + 0.64) / (0.5 + 1.4)]
    assert empty_plane.speedup(0.25, 0.8) == pytest.approx(max(by_hand)) and max(by_hand) == by_hand[1]
    assert empty_plane.speedup(0.9, 0.1) == pytest.approx(1.0)  # drafting nothing is one of them


def test_the_frontier_has_no_point_that_another_beats() -> None:
    places = [(0.5, 0.5), (0.5, 0.6), (0.4, 0.6), (0.9, 0.7), (1.0, 0.7)]
    points = [Point((i,), cost, alpha) for i, (cost, alpha) in enumerate(places)]
    assert [point.skipped for point in pareto_front(points)] == [(2,), (3,)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> tuple[Path, list[Run]]:
    folder = tmp_path_factory.mktemp("runs")
    options = (*local_model(small_checkpoint), "limit=2", "decode.max_new_tokens=20", "task=gsm8k")
    methods = (
        ("method=fixed_layers",),
        ("method=layerskip", "method.exit_layer=1"),
        ("method=layerskip", "method.exit_layer=1", "method.draft_window=[1,3]", "hardware.kernels=torch"),
    )
    return folder, [executed(folder, *options, *method) for method in methods]


def test_sets_of_records_lie_under_the_frontier(
    recorded: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs = recorded
    model = runs[0].header.model.name
    assert main([f"model={model}", "task=gsm8k", f"runs_dir={folder}"]) == 0
    shown = capsys.readouterr().out
    result = plane.read(plane.plane_path(folder, model, "gsm8k"))
    used = {use.run: point for point in result.chosen for use in point.uses}
    assert set(used) == {run.path.name for run in runs} and all(name in shown for name in ("fixed_layers", "layerskip"))
    n_layers = runs[0].header.model.n_layers
    exits = [used[run.path.name] for run in runs[1:]]
    assert [point.skipped for point in exits] == [tuple(range(2, 2 * n_layers))] * 2
    assert [point.window for point in exits] == [None, (1, 3)] and exits[1].cost < exits[0].cost
    for point in result.chosen:
        assert math.isclose(sum(use.share for use in point.uses), len(point.uses))  # each of these has one set
        assert any(best.cost <= point.cost and best.alpha >= point.alpha for best in result.frontier)


def test_every_turn_of_a_conversation_is_scored(
    tmp_path: Path, small_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [{"prompt": ["the report of the ferry", "shorter"]}, {"prompt": "a lease"}]
    file = write_rows(tmp_path / "mine.jsonl", *items)
    options = (*local_model(small_checkpoint), "task=jsonl", f"task.path={file}", "decode.max_new_tokens=20")
    run = executed(tmp_path / "runs", *options, "method=layerskip", "method.exit_layer=1")
    plain = run.prompts[run.prompts["arm"] == "ar"]
    assert plain["turn"].tolist() == [0, 1, 0]
    model = run.header.model.name
    assert main([f"model={model}", "task=jsonl", f"runs_dir={tmp_path / 'runs'}"]) == 0
    assert f"α over {plain['output_ids'].map(len).sum() - len(plain)} tokens" in capsys.readouterr().out
    later = run.prompts.assign(prompt_sha256=run.prompts["prompt_sha256"].where(run.prompts["turn"] == 0, "other"))
    with pytest.raises(ConfigError, match="changed since"):
        frontier.frontier([replace(run, prompts=later)], 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["task=gsm8k"], "model"),
        (["model=other", "task=gsm8k"], "runs_dir"),
        (["model=other", "task=gsm8k", "beam=0"], "beam"),
        (["model=other", "task=gsm8k", "tries=0"], "tries"),
        (["model=other", "task=gsm8k", "least=2"], "least"),
        (["model=other", "task=gsm8k", "share=x"], "share"),
        (["width=3"], "option"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arguments if message == "option" else [*arguments, f"runs_dir={tmp_path}"]
    assert main(options) == 2
    assert message in capsys.readouterr().err


def test_runs_at_a_reference_machines_costs_are_judged_by_them(
    recorded: tuple[Path, list[Run]], tmp_path: Path, small_checkpoint: Path
) -> None:
    name = "h200/llama3_1_8b"
    options = (*local_model(small_checkpoint), "limit=2", "decode.max_new_tokens=20", "task=gsm8k")
    options = (*options, "method=fixed_layers", "hardware.latency=null")
    run = executed(tmp_path, *options, f"hardware.costs={name}")
    executed(tmp_path, *options)
    (comparable,) = frontier.find_comparable_runs(tmp_path, run.header.model.name, "gsm8k")
    assert comparable.path == run.path
    ours, own = (frontier.frontier([one], 1) for one in (run, recorded[1][0]))
    n_layers = run.header.model.n_layers
    *_, verify = costs(reference_machine(name).of_blocks(n_layers), n_layers, ours.context)
    assert ours.verify == verify != own.verify


def test_prompts_that_have_changed_are_refused(recorded: tuple[Path, list[Run]]) -> None:
    run = recorded[1][0]
    prompts = run.prompts.assign(prompt_sha256="other")
    with pytest.raises(ConfigError, match=r"task='gsm8k'.*changed since"):
        frontier.frontier([replace(run, prompts=prompts)], 2)


def test_every_long_part_shows_its_progress(scores: SetScores, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [LayerSet.full(LAYERS), LayerSet.exit(LAYERS, 2)]
    prompts = len(scores._texts)
    scores(sets)
    assert not capsys.readouterr().err
    scores.alphas = {}
    scores(sets, "layer sets")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"[{i + 1}/{prompts}] 2 layer sets" for i in range(prompts)]
    assert all(line.endswith(" s left") for line in lines)
    scores(sets, "layer sets")
    assert not capsys.readouterr().err, "nothing new was scored"
    beam(LAYERS, scores, width=1)
    assert f"/{2 * LAYERS}] beam search, by skipped sublayers" in capsys.readouterr().err
