"""methods/fidelity.md against the code: its switches and its tests."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from hydra.utils import get_class

from methods.layer_search import SearchSettings
from ssd_bench.conf import CONF
from tests.runs import chosen

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "methods" / "fidelity.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PRESETS = {path.stem: chosen("method", path.stem) for path in sorted((CONF / "method").glob("*.yaml"))}
OF_SECTION = {  # a preset of each class that the section is about
    "KnapSpec": ("knapspec",),
    "CLaSp": ("clasp",),
    "ConfLayers": ("conflayers",),
    "SWIFT": ("swift",),
    "Self-SD": ("self_ssd",),
    "KNN-SSD": ("knn_ssd",),
    "DEL": ("del",),
    "LayerSkip": ("layerskip", "layerskip_swept"),
    "ASD-style": ("asd",),
    "Window draft": ("window_draft",),
    "8-bit and 4-bit drafts": ("int8_draft", "int4_draft", "nested_draft"),
    "Jacobi": ("jacobi",),
    "Lookahead": ("lookahead",),
    "Prompt lookup": ("prompt_lookup",),
    "Suffix decoding": ("suffix",),
}


def parameters(made: object) -> set[str]:
    return set(inspect.signature(made).parameters) - {"self", "name"}  # type: ignore[arg-type]


def switches(section: str) -> set[str]:
    """Names in backticks in the tables' first column."""
    rows = re.findall(r"^\| ([^|]*) \|", SECTIONS[section], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_every_method_of_a_paper_has_a_section() -> None:
    assert set(SECTIONS) == {"All methods", *OF_SECTION}
    papers = PRESETS.keys() - {"adaptive", "oracle", "ar", "fixed_layers"}
    named = {name for names in OF_SECTION.values() for name in names}
    assert {PRESETS[name]["_target_"] for name in papers} == {PRESETS[name]["_target_"] for name in named}
    names = {preset: settings["name"] for preset, settings in PRESETS.items()}
    assert names == {preset: preset for preset in PRESETS} | {"asd": "asd_style"}


@pytest.mark.parametrize("section", OF_SECTION)
def test_every_switch_stands_there(section: str) -> None:
    known = set().union(*(parameters(get_class(PRESETS[name]["_target_"])) for name in OF_SECTION[section]))
    if "search" in known:
        known = known - {"search"} | {f"search.{name}" for name in parameters(SearchSettings)}
    named = {name for name in switches(section) if not name.startswith("hardware.")}
    assert named <= known
    # KNN-SSD searches as Self-SD, whose section has the search's own
    missing = known - named - switches("All methods")
    assert not missing or (section == "KNN-SSD" and all(name.startswith("search.") for name in missing))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_test_exists(section: str) -> None:
    body = SECTIONS[section]
    files = re.findall(r"`(tests/[\w/]+\.py)`", body)
    sources = [(ROOT / file).read_text(encoding="utf-8") for file in files]
    there = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    named = set(re.findall(r"`(test_\w+)`", body))
    assert named and named <= there, sorted(named - there)
