"""The page of all exhibits: every number once, nothing loaded, and filters in a browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from ssd_bench.commands import report as report_command
from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import audit
from ssd_bench.papers.claims.claims import claims
from ssd_bench.papers.claims.judge import EVIDENCE_CLASSES, Judgement, judge
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours import select
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import paper_versions
from ssd_bench.predict.gpu_results import read_gpu_results
from ssd_bench.report import facts, figures, numbers, page, verdict_texts, verdicts, write
from ssd_bench.report.exhibit import build_exhibits
from ssd_bench.report.figures import figure
from ssd_bench.report.results import read_results, result_table
from ssd_bench.results.folder import records
from tests.exhibit_runs import indexed, make
from tests.report.test_in_a_paper import check_latex
from tests.runs import REFERENCE, ROOT

COMMITTED = ROOT / "docs" / "report"
PAPERS_WITH_CLAIMS = [paper for paper in paper_versions() if any(c.id.startswith(f"{paper}/") for c in claims())]
DRAWN = ("swift_figure6", "knapspec_figure3", "knn_ssd_figure9")
TABLE8 = ("swift", "Table 8")
VOID = {"meta", "link", "input", "img", "br", "hr", "source"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective + event.blockedURI));
console.error = console.warn = (...words) => errors.push(words.join(" "));
const wait = () => new Promise((done) => setTimeout(done, 20));
const visible = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
function seen() {
  const root = document.documentElement;
  return { hash: location.hash, overflow: root.scrollWidth - innerWidth, width: innerWidth,
    status: document.getElementById("status").textContent, listed: visible("nav .contents a").length,
    nothing: visible("#nothing").length, exhibits: visible("article").map((e) => e.id),
    numbers: visible("[data-id]").map((e) => e.dataset.id), columns: visible(".wide thead [data-task]").length };
}
async function go(hash) {
  location.hash = hash;
  await wait();
  return seen();
}
async function choose(values) {
  const form = document.getElementById("filters");
  form.reset();
  await wait();
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  form.dispatchEvent(new Event("input"));
  return seen();
}
addEventListener("load", async () => {
  const found = { start: seen() };
  for (const element of document.querySelectorAll("details")) element.open = true;
  document.getElementById("next").click();
  await wait();
  found.next = seen();
  found.all = await choose({ show: "all" });
  found.paper = await choose({ paper: "swift", show: "all" });
  found.cell = await choose({ paper: "swift", model: "LLaMA-2-70B", task: "GSM8K", method: "SWIFT", show: "all" });
  found.text = await choose({ q: "entropy  CONFIDENCE" });
  found.none = await choose({ q: "no such words anywhere" });
  found.hash = await go("#task=XSUM&show=all");
  found.anchor = await go("#swift_table8");
  const top = document.getElementById("swift_table8").getBoundingClientRect().top;
  const under = document.elementFromPoint(innerWidth / 2, Math.max(top, 0) + 20);
  found.covered = document.getElementById("swift_table8").contains(under) ? 0 : 1;
  await choose({ show: "all" });
  for (const image of document.images) image.loading = "eager";
  for (let i = 0; i < 100 && [...document.images].some((image) => !image.complete); i++) await wait();
  found.small = [...document.querySelectorAll("img")].filter((e) => !e.naturalWidth).length;
  found.errors = errors;
  const report = JSON.stringify(found);
  if (parent === window) document.documentElement.dataset.found = report;
  else parent.postMessage(report, "*");
});
</script>"""
FRAME = """<!DOCTYPE html><body style="margin:0"><script>
addEventListener("message", (event) => { document.documentElement.dataset.found = event.data; });
</script><iframe src="probed.html" style="border:0;width:WIDTHpx;height:800px"></iframe>"""


class Page(HTMLParser):
    """The elements of a page; refuses what is not well-formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {attrs}"
        self.found.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.found if tag in tags]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Draw only some of the figures, which have their own tests, and compute what no run changes once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "audit", cache(audit.audit))
        patch.setattr(facts, "modelled_speedups", cache(facts.modelled_speedups))
        patch.setattr(
            figures, "figure", lambda one: figure(one) if one.experiment.name in DRAWN else NotDrawable("Not now.")
        )
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, every_experiment: Path) -> Path:
    """The command's report of every experiment at scale mini, with verdicts of missing records."""
    out = tmp_path_factory.mktemp("page") / "out"
    (every_experiment / "verdicts").mkdir(exist_ok=True)  # nothing but a page reads them
    claim = next(claim for claim in claims() if claim.id == "swift/faster_than_ar")
    values = {"claim": claim.id, "scale": "small", "model": "another", "toy": False, "verdict": "fails"}
    values |= {"evidence_class": "another real model", "effect": 0.5, "low": 0.4, "high": 0.6, "n": 60}
    values |= {"combinations": 3, "planned_combinations": 3, "out_of_scope": 0, "claim_sha256": claim.sha256}
    row = ",".join(str(values.get(name, "")) for name in verdicts.COLUMNS)
    text = f"{','.join(verdicts.COLUMNS)}\n{row}\n"
    (every_experiment / "verdicts" / "another.csv").write_text(text, encoding="utf-8")
    assert report_command.main([f"runs_dir={every_experiment}", f"out={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def text(out: Path) -> str:
    return (out / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(text: str) -> Page:
    return Page(text)


def test_tests_that_share_a_fixture_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """xdist's scheduler reads the group at the end of a test's id, where installed versions may not put it."""
    grouped = bool(request.config.getoption("loadgroup", False))
    assert request.node.nodeid.endswith("@judgements") == grouped


def test_the_command_writes_everything(out: Path) -> None:
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"index.html", "audit.md", "tables/swift_table2.md", "tables/swift_table2.tex"} <= names
    assert {"verdicts.md", "verdicts.csv", "README.md", f"figures/{figures.FOREST}.png"} <= names
    assert {f"figures/{name}_mini.{kind}" for name in DRAWN for kind in ("png", "pdf")} <= names
    assert (out / "index.html").stat().st_size < 2e6
    listed = re.findall(r"\]\((.*?)\)", (out / "README.md").read_text(encoding="utf-8"))
    assert set(listed) == set(write.CONTENTS) - {"notebooks"} and all((out / name).exists() for name in listed)


def test_no_table_of_toy_runs_looks_like_a_replication_and_latex_compiles(out: Path) -> None:
    for path in (out / "tables").glob("*.csv"):
        markdown, latex = (path.with_suffix(kind).read_text(encoding="utf-8") for kind in (".md", ".tex"))
        check_latex(latex)
        assert "?" not in latex.replace("DEL's gain?", "")  # a title; elsewhere a character that LaTeX lacks
        frame = pd.read_csv(path)
        if "ours" in frame and frame["ours"].notna().any():
            assert all("not a replication of any paper" in text for text in (markdown, latex))


def test_every_number_is_on_the_page_once(parsed: Page) -> None:
    counts = Counter(attributes["data-id"] for _, attributes in parsed.found if "data-id" in attributes)
    assert set(counts) == {number.id for number in reported.numbers()}
    assert set(counts.values()) == {1}


def test_every_exhibit_is_on_the_page_once_and_linked(parsed: Page, out: Path) -> None:
    ids = [attributes["id"] for _, attributes in parsed.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    listed = reported.exhibits()[["paper", "exhibit"]].itertuples(index=False)
    wanted = {numbers.file_stem(*key) for key in (*listed, *select.experiments()) if key[0] in paper_versions()}
    articles = {a["id"] for a in parsed.all("article")}
    assert wanted <= articles
    links = {a["href"] for a in parsed.all("a")}
    within = {link for link in links if link.startswith("#")}
    assert {f"#{name}" for name in {*articles, "exhibits"}} == within and all(link[1:] in ids for link in within)
    assert links - within and all((out / link).is_file() for link in links - within)


def test_models_without_a_task_in_common_stand_in_tables_of_their_own(text: str) -> None:
    """KnapSpec's Table 2 has three tasks for some models and three others for the rest."""
    tables = re.findall(r'<table class="wide">.*?</table>', article(text, "knapspec_table2"), re.DOTALL)
    heads = [set(re.findall(r'colspan="\d+" data-task="([^"]+)"', table)) for table in tables]
    assert len(heads) == 2 and not heads[0] & heads[1] and all(len(head) == 3 for head in heads)
    assert all('data-id="' in row for row in re.findall(r"<tr data-model.*?</tr>", text, re.DOTALL))


def test_the_first_screen_has_an_answer_for_every_claim(text: str, parsed: Page) -> None:
    top = html.unescape(text[: text.index('id="browse"')])
    listed = [a["data-claim"] for a in parsed.all("tr") if "data-claim" in a]
    assert sorted(listed) == sorted(claim.id for claim in claims())
    firsts = [next(claim.id for claim in claims() if claim.id.startswith(f"{paper}/")) for paper in PAPERS_WITH_CLAIMS]
    assert listed[: len(firsts)] == firsts  # the most important claim of every paper comes first
    assert all(claim.says in top for claim in claims()) and verdict_texts.RULE.replace("*", "").replace("`", "") in top
    assert "this project trained" in top and figures.FOREST in top and "What to use" in top
    assert [a["data-class"] for a in parsed.all("td") if "data-class" in a][:3] == list(EVIDENCE_CLASSES)
    row = re.search(r'<tr data-claim="swift/faster_than_ar".*?</tr>', top, re.DOTALL)
    assert row is not None
    real, toy = (row[0].split(f'data-class="{name}"')[1] for name in EVIDENCE_CLASSES[1:])
    real = real.split("</td>")[0]
    assert "<b>fails</b> 0.50 [0.40, 0.60]×" in real and "another, size" in real.replace("\xa0", " ")
    assert "on the toy model: " in toy and "miniature, size not recorded" in toy


def test_a_toy_has_no_cross_and_every_sign_is_in_the_legend(text: str) -> None:
    top = html.unescape(text[: text.index('id="browse"')])
    toys = re.findall(r'data-class="toy model">(.*?)</td>', top, re.DOTALL)
    assert toys and not any("✗" in cell or "✓" in cell for cell in toys)
    legend = top[top.index("Legend and rules") :]
    signs = set(re.findall(r'<span class="said[^>]*><i[^>]*>(.)</i>', top))
    assert signs <= set(re.findall(r"<dt><i[^>]*>(.)</i>", legend))


def test_nothing_is_loaded_and_nothing_is_told_of_the_machine(
    parsed: Page, text: str, out: Path, every_experiment: Path
) -> None:
    for _, attributes in parsed.found:
        for name in ("src", "srcset", "poster", "data", "action"):
            assert attributes.get(name, "data:").startswith("data:") or (out / attributes[name]).is_file()
    assert [a["href"] for a in parsed.all("link")] == ["data:,"]
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org)|fetch\(|XMLHttp|import\(", text)
    assert "default-src 'none'" in text and not any(str(folder) in text for folder in (out.parent, every_experiment))


def test_it_can_be_read_by_those_who_hear_it(parsed: Page, text: str) -> None:
    assert all(a["scope"] in ("col", "row", "colgroup", "rowgroup") for a in parsed.all("th"))
    assert all(len(a["alt"]) > 20 for a in parsed.all("img")) and len(parsed.all("img")) == len(DRAWN) + 1
    assert all(a.get("loading") == "lazy" for a in parsed.all("img")[1:])
    assert text.count("<caption") == len(parsed.all("table"))
    assert {"main", "nav", "header", "footer", "form", "output"} <= {tag for tag, _ in parsed.found}
    labelled = text.count("<label")
    assert labelled == len(parsed.all("select", "input")) == 6
    assert parsed.all("html")[0]["lang"] == "en"
    for rule in ("prefers-color-scheme: dark", "@media print", ":focus-visible"):
        assert rule in text
    assert parsed.all("a")[0] == {"class": "skip", "href": "#exhibits"}


def article(text: str, name: str) -> str:
    found = re.search(rf'<article id="{name}".*?</article>', text, re.DOTALL)
    assert found is not None
    return html.unescape(found[0])


def test_an_exhibit_says_what_it_is(text: str) -> None:
    table = article(text, "swift_table8")
    assert "python -m ssd_bench -m experiment=swift_table8 scale=mini" in table
    assert "<code>plain</code>" in table and ">complete<" in table and "Speed numbers: " in table
    figure6 = article(text, "swift_figure6")
    assert figure6.count("<img") == 1 and "figures/swift_figure6_mini.pdf" in figure6
    assert "No figure at scale mini: Not now." in article(text, "swift_figure12")
    assert "It contains no results, only a diagram." in article(text, "knapspec_figure1")
    assert "It uses the runs of SWIFT, Figure 12, which also shows the figure." in article(text, "swift_v1_figure11")
    assert "unknown" in article(text, "knapspec_table1")


def test_the_audit_is_a_part_of_the_page(text: str, out: Path) -> None:
    checks = audit.audit()
    assert (out / "audit.md").read_text(encoding="utf-8") == audit.markdown_text(checks)
    for paper in paper_versions():
        told = audit.group_findings(checks)
        body = article(text, f"audit_{numbers.file_stem(paper, '')}")
        assert all(what in body for what in told.loc[told["paper"] == paper, "what"])


def test_a_page_without_runs_says_so_of_every_exhibit() -> None:
    judged = verdicts.table(judge([]))
    shown = build_exhibits(numbers.long_tables([], "swift"))
    text = page.render(shown, [], {}, audit.audit(), judged, result_table([]))
    Page(text)
    assert "No run of ours gives these numbers yet." in text and ">complete<" not in text and "<img" not in text
    assert "No figure yet: experiment=swift_figure6 was not run at any scale." in text
    assert "experiment=swift_figure6 scale=paper" in text


def test_the_same_records_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "long_tables", lambda made: {TABLE8: numbers.long_table(made, *TABLE8)})
    make(runs := tmp_path / "runs", "plain")
    for name in ("swift_figure6", "swift_table8"):
        indexed(runs, name, "mini", lambda job: "plain")
    one, two = (write.write_replication(replications(runs), tmp_path / name, runs) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert (
        b"/FontFile2" in (tmp_path / "a" / "figures" / "swift_figure6_mini.pdf").read_bytes()
    )  # fonts are in the file
    drawings = {path.name for path in (tmp_path / "a" / "figures").iterdir()}
    assert {"swift_figure6_mini.png", "swift_figure6_mini.pdf"} <= drawings
    tables = {f"swift_table8.{kind}" for kind in ("md", "tex", "csv")}
    beside = {"results.csv", "verdicts.md", "verdicts.csv", "verdicts.tex", "audit.md", "index.html"}
    assert {path.name for path in one} == tables | beside | drawings
    assert list(pd.read_csv(tmp_path / "a" / "tables" / "swift_table8.csv")) == list(numbers.COLUMNS)


def test_a_large_figure_is_a_png_and_a_damaged_record_costs_its_own_figure_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "plain")
    indexed(tmp_path, "swift_figure6", "mini", lambda job: "plain")
    made = replications(tmp_path)
    for limit, kind in ((10_000_000, ".svg"), (1, ".png")):
        monkeypatch.setattr(figures, "SVG_LIMIT", limit)
        image = figures.save_for_page(Figure((1, 1)), "name", made[0], tmp_path / "drawn").image
        assert image is not None and image.is_file() and image.suffix == kind
    (tmp_path / "plain" / "steps.parquet").write_bytes(b"PAR1")
    found = figures.draw_figures(replications(tmp_path), tmp_path / "out")["swift_figure6"][0]
    assert found.image is None and found.reason.startswith("A record cannot be read")


def test_verdicts_do_not_depend_on_the_process_that_judges(
    every_experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments = [one for one in replications(every_experiment) if one.experiment.paper == "conflayers"]
    frames = []
    for cores in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        with write._judging(experiments) as judged_table:
            frames.append(judged_table())
    pd.testing.assert_frame_equal(*frames)
    assert (frames[0]["verdict"] != "not run").any()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="a directory that can be written"):
        write.write_replication([], tmp_path / "file", tmp_path)


def test_texts_are_escaped_once(text: str) -> None:
    assert not re.search("&amp;(amp|lt|#)", text)
    assert page.join_values(["CNN/DM, GSM8K", "", "GSM8K"]) == "CNN/DM|GSM8K"


def test_the_committed_page_is_that_of_the_committed_records(
    reference: list[Replication], judgements: list[Judgement]
) -> None:
    """Every number and verdict word for word, and exactly its figures (`make page`)."""
    judged = verdicts.merge_verdicts(verdicts.table(judgements), verdicts.read_verdicts(REFERENCE))
    shown = build_exhibits(numbers.long_tables(reference), reference)
    results = pd.concat([result_table(reference, records(REFERENCE)), read_results(REFERENCE)], ignore_index=True)
    gpu_results = [*read_gpu_results(write.GPU_RESULTS).values()]
    fresh = page.render(shown, reference, {}, audit.audit(), judged, results, gpu_results)
    committed = (COMMITTED / "index.html").read_text(encoding="utf-8")
    parts = (r'<h2 id="use">.*?</table>', r'<table class="sortable">.*?</table>', r'<div class="fact">.*?</div>')
    for pattern in (r'<span class="n v-.*?</span>', r"<tr data-claim.*?</tr>", *parts):
        found, wanted = (re.findall(pattern, text, re.DOTALL) for text in (committed, fresh))
        assert found == wanted and found
    assert verdict_texts.document(judged) == (COMMITTED / "verdicts.md").read_text(encoding="utf-8")
    shown = {a[name] for a in Page(committed).all("img", "source") for name in ("src", "srcset") if name in a}
    assert shown == {f"figures/{path.name}" for path in (COMMITTED / "figures").iterdir()}
    linked = {a["href"] for a in Page(committed).all("a") if not a["href"].startswith("#")}
    assert all((COMMITTED / link).is_file() for link in linked) and {"verdicts.csv", "results.csv"} <= linked
    assert (COMMITTED / "first_screen.png").is_file() and (COMMITTED / "index.html").stat().st_size < 2e6


def browsed(address: str, width: int) -> dict[str, Any]:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--allow-file-access-from-files", "--no-sandbox", "--disable-gpu"]
    command += [f"--window-size={width},800", "--virtual-time-budget=10000", "--dump-dom", address]
    dumped = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True).stdout
    found = re.search(r'data-found="([^"]*)"', dumped)
    assert found is not None, dumped[:500]
    return dict(json.loads(html.unescape(found[1])))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [1400, 360])
def test_the_page_in_a_browser(text: str, out: Path, tmp_path: Path, width: int) -> None:
    """A window has at least 500 pixels, so a phone's is a frame."""
    (tmp_path / "figures").symlink_to(out / "figures")
    (tmp_path / "probed.html").write_text(text.replace("<style>", f"{PROBE}<style>", 1), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    name = "probed" if width > 500 else "frame"
    found = browsed((tmp_path / f"{name}.html").as_uri(), max(width, 500))
    assert found.pop("errors") == [] and found.pop("small") == 0 and found.pop("covered") == 0
    assert {view["width"] for view in found.values()} == {width}
    assert {name: view["overflow"] for name, view in found.items() if view["overflow"] > 0} == {}
    everything = {number.id: number for number in reported.numbers()}
    start, shown, paper, cell = (found[name] for name in ("start", "all", "paper", "cell"))
    count = len(shown["exhibits"])
    assert len(start["exhibits"]) == len(found["next"]["exhibits"]) == 1 != count
    assert start["exhibits"] != found["next"]["exhibits"]
    assert found["next"]["hash"] == f"#{found['next']['exhibits'][0]}"
    assert sorted(shown["numbers"]) == sorted(everything) and start["status"] == f"{count} of {count} match"
    assert shown["listed"] == count and found["none"]["listed"] == 0
    assert set(paper["numbers"]) == {one.id for one in everything.values() if one.paper == "swift"}
    assert paper["hash"] == "#paper=swift&show=all" and not any("swift_v1" in name for name in paper["exhibits"])
    chosen = {
        one.id
        for one in everything.values()
        if (one.paper, one.model, one.method) == ("swift", "LLaMA-2-70B", "SWIFT") and "GSM8K" in one.task.split(", ")
    }
    assert set(cell["numbers"]) == chosen and "swift_table2" in cell["exhibits"]
    assert cell["columns"] < shown["columns"]
    assert len(found["text"]["exhibits"]) == 1 and found["text"]["listed"] < 20
    assert found["none"]["exhibits"] == [] and found["none"]["nothing"] == 1
    assert found["hash"]["numbers"] and all("XSUM" in everything[one].task for one in found["hash"]["numbers"])
    assert found["anchor"]["exhibits"] == ["swift_table8"]
