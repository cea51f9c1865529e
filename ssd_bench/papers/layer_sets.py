"""The published layer sets against the skip ratios that the papers state for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ssd_bench.papers.arithmetic import CONSISTENT, CONTRADICTION, EPSILON, UNCLEAR, Check, check, one
from ssd_bench.papers.reported import layer_set_name, layer_sets, slug
from ssd_bench.papers.swift.checks import stated_skip_ratio

MODELS = ("LLaMA-2-13B", "LLaMA-2-70B", "LLaMA-3-8B", "LLaMA-3-70B")  # of ConfLayers' Table 3
TASKS = ("CNN/DM", "GSM8K", "WMT14 DE-EN", "Alpaca")


def shares(paper: str, model: str, task: str, inner: bool = False) -> float:
    """The share of sublayers that a published set skips, of all 2L or of those between first and last block."""
    entry = layer_sets()[layer_set_name(paper, model, task)]
    blocks = entry["n_layers"] - (2 if inner else 0)
    return (len(entry["skip_attn"]) + len(entry["skip_mlp"])) / (2 * blocks)


def checks() -> Iterator[Check]:
    """All released sets whose ratio a paper states, and sets that are released under several names."""
    yield from swift()
    yield from conflayers()
    stated = one("swift", "Table 10", method="Self-SD", metric="skip_ratio")
    share = shares("self_ssd", stated.model, "all")
    fits = CONSISTENT if abs(share - stated.value) <= stated.half + EPSILON else CONTRADICTION
    yield check(stated, "released set", f"the set of Self-SD's repository skips {share:.3f}", share, "repository", fits)
    yield from released_twice()


def swift() -> Iterator[Check]:
    """SWIFT's r of §B.2 against its released sets: Eq. 6 needs the share of all sublayers."""
    for name in layer_sets():
        paper, model, task = name.split("/")
        if paper != "swift":
            continue
        stated = stated_skip_ratio(model.upper())
        share, inner = shares(paper, model, task), shares(paper, model, task, inner=True)
        text = (
            f"§B.2 fixes r = {stated:g} for {model}; the released set for {task} skips {share:.3f} of all sublayers, "
            f"as Eq. 6 counts, and {inner:.3f} of those that may be skipped"
        )
        # two decimals are printed
        fits = CONSISTENT if abs(share - stated) <= 0.005 + EPSILON else CONTRADICTION
        where = (f"swift/{model}/{task}/skip_ratio#released set", "swift", "Table 2", "released set")
        yield Check(*where, text, stated, share, "§B.3 Eq. 6; skip sets of the repository", fits)


def conflayers() -> Iterator[Check]:
    """Table 3's skip ratios against the 16 released sets, counted over the blocks that may be skipped."""
    for model in MODELS:
        for task in TASKS:
            where = {"model": model, "method": "ConfLayers", "task": task}
            stated = one("conflayers", "Table 3", metric="skip_ratio", **where)
            inner, share = shares("conflayers", model, task, inner=True), shares("conflayers", model, task)
            text = f"the released set skips {inner:.3f} of all blocks but the first and last, {share:.3f} of all"
            fits = CONSISTENT if abs(inner - stated.value) <= stated.half + EPSILON else CONTRADICTION
            yield check(stated, "released set", text, inner, "skip sets of the repository", fits)


def released_twice() -> Iterator[Check]:
    """Sets of KNN-SSD's repository that are the same list under several names."""
    names = defaultdict(list)
    for name, entry in layer_sets().items():
        if name.startswith("knn_ssd/"):
            names[str(entry["skip_attn"]), str(entry["skip_mlp"])].append(name.removeprefix("knn_ssd/"))
    for group in filter(lambda found: len(found) > 1, names.values()):
        text = f"the repository has the same layer set for {', '.join(group)}"
        where = (f"knn-ssd/{slug(group[0])}#released twice", "knn-ssd", "Figure 9", "released twice")
        yield Check(*where, text, None, None, "skip sets of the repository", UNCLEAR)
