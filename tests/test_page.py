"""The page of all exhibits: every number once, nothing loaded, and a browser that filters it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.papers import audit, reported, select
from ssd_bench.papers.cells import replications
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.papers.rooms import papers
from ssd_bench.replay.predict import predict
from ssd_bench.report import command, exhibits, figures, page, predictions
from ssd_bench.report.figures import figure
from tests.exhibit_runs import indexed, make, make_all, number

pytestmark = pytest.mark.xdist_group("page")

DRAWN = ("swift_figure6", "knapspec_figure3", "knn_ssd_figure9")
VOID = {"meta", "link", "input", "img", "br", "hr"}
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
    status: document.getElementById("status").textContent,
    nothing: visible("#nothing").length, exhibits: visible("article").map((e) => e.id),
    numbers: visible("[data-id]").map((e) => e.dataset.id), columns: visible(".wide thead [data-task]").length };
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
  found.open = seen();
  found.paper = await choose({ paper: "swift" });
  found.cell = await choose({ paper: "swift", model: "LLaMA-2-70B", task: "GSM8K", method: "SWIFT" });
  found.text = await choose({ q: "entropy  CONFIDENCE" });
  found.none = await choose({ q: "no such words anywhere" });
  location.hash = "#task=XSUM";
  await wait();
  found.hash = seen();
  location.hash = "#swift_table8";
  await wait();
  found.anchor = seen();
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
    """Of the figures, which have tests of their own, only some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            figures, "figure", lambda one: figure(one) if one.experiment.name in DRAWN else Cannot("Not now.")
        )
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of every experiment at scale mini, by its command."""
    folder = tmp_path_factory.mktemp("page")
    make_all(folder / "runs")
    assert command.main([f"runs_dir={folder / 'runs'}", f"out={folder / 'out'}"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def text(out: Path) -> str:
    return (out / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(text: str) -> Page:
    return Page(text)


def test_the_command_writes_everything(out: Path) -> None:
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"index.html", "audit.md", "predictions.md", "tables/swift_table2.md", "tables/swift_table2.tex"} <= names
    assert {f"figures/{name}_mini.{kind}" for name in DRAWN for kind in ("png", "pdf")} <= names
    assert (out / "index.html").stat().st_size < 15e6


def test_every_number_is_on_the_page_once(parsed: Page) -> None:
    counts = Counter(attributes["data-id"] for _, attributes in parsed.found if "data-id" in attributes)
    assert set(counts) == {number.id for number in reported.numbers()}
    assert set(counts.values()) == {1}


def test_every_exhibit_is_on_the_page_once_and_linked(parsed: Page) -> None:
    ids = [attributes["id"] for _, attributes in parsed.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    listed = reported.exhibits()[["paper", "exhibit"]].itertuples(index=False)
    wanted = {exhibits.stem(*key) for key in (*listed, *select.experiments()) if key[0] in papers()}
    articles = {a["id"] for a in parsed.all("article")}
    assert wanted <= articles
    links = [a["href"] for a in parsed.all("a")]
    sections = {"exhibits", "comparison", "predictions", "audit"}
    beside = ("audit_", "predictions_", "ssd_bench_")
    assert {f"#{name}" for name in {*articles, *sections} if not name.startswith(beside)} == set(links)
    assert all(link[1:] in ids for link in links)


def test_nothing_is_loaded_and_nothing_is_told_of_the_machine(parsed: Page, text: str, out: Path) -> None:
    for _, attributes in parsed.found:
        for name in ("src", "srcset", "poster", "data", "action"):
            assert attributes.get(name, "data:").startswith("data:")
    assert [a["href"] for a in parsed.all("link")] == ["data:,"]
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org)|fetch\(|XMLHttp|import\(", text)
    assert "default-src 'none'" in text and str(out.parent) not in text


def test_it_can_be_read_by_those_who_hear_it(parsed: Page, text: str) -> None:
    assert all(a["scope"] in ("col", "row", "colgroup", "rowgroup") for a in parsed.all("th"))
    assert all(len(a["alt"]) > 20 for a in parsed.all("img")) and len(parsed.all("img")) == len(DRAWN)
    assert text.count("<caption") == len(parsed.all("table"))
    assert {"main", "nav", "header", "footer", "form", "output"} <= {tag for tag, _ in parsed.found}
    labelled = text.count("<label")
    assert labelled == len(parsed.all("select", "input")) == 5
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
    assert "rehearsal on a model that this project trained: not a replication of any paper" in table
    assert "<code>plain</code>" in table and ">filled<" in table
    assert "Algorithmic: 1 by definition, 8 other model." in table and "Speed: " in table
    figure6 = article(text, "swift_figure6")
    assert figure6.count("<img") == 1 and "figures/swift_figure6_mini.pdf" in figure6
    assert "No figure at scale mini: Not now." in article(text, "swift_figure12")
    assert "It holds no results, but a diagram." in article(text, "knapspec_figure1")
    assert "It has the runs of SWIFT, Figure 12, whose figure is there." in article(text, "swift_v1_figure11")
    assert "unknown" in article(text, "knapspec_table1")
    assert "this project trained" in text[: text.index('id="filters"')]


def test_the_audit_is_a_part_of_the_page(text: str, out: Path) -> None:
    checks = audit.audit()
    assert audit.summary(checks) in html.unescape(text)
    assert (out / "audit.md").read_text(encoding="utf-8") == audit.document(checks)
    for paper in papers():
        told = audit.told(checks)
        body = article(text, f"audit_{exhibits.stem(paper, '')}")
        assert all(what in body for what in told.loc[told["paper"] == paper, "what"])


def test_predictions_are_a_part_of_the_page_and_called_so(text: str, out: Path) -> None:
    frame = predictions.predictions(replications(out.parent / "runs"))
    assert len(frame) and set(frame["paper"]) == set(papers()) - {"knapspec"}
    assert pd.read_csv(out / "predictions.csv")["predicted"].tolist() == pytest.approx(frame["predicted"].tolist())
    for paper, rows in frame.groupby("paper"):
        body = article(text, f"predictions_{exhibits.stem(str(paper), '')}")
        assert "PREDICTED" in body and all(f">{value:.2f}<" in body for value in rows["predicted"])
    assert predictions.INTRO in html.unescape(text) and predictions.INTRO.startswith("Predictions, never measurements")


def test_a_prediction_is_that_of_its_runs_steps_for_the_papers_model(out: Path) -> None:
    found = replications(out.parent / "runs")
    frame = predictions.predictions(found).set_index(["paper", "exhibit", "model", "task", "method"])
    row = frame.loc[("swift", "Table 2", "LLaMA-2-70B", "GSM8K", "SWIFT")]
    (made,) = {
        result.record for one in found for result in one.cells if result.record and result.path.name == row["run"]
    }
    assert (row["machine"], row["printed"]) == (
        "sim_a6000",
        number("swift/table2/llama-2-70b/swift/gsm8k/speedup").printed,
    )
    assert row["predicted"] == predict(made.run, "sim_a6000", "llama2_70b")["speedup"]
    assert row["measured"] == made.summary["speedup"]


def test_a_page_without_runs_says_so_of_every_exhibit() -> None:
    text = page.render([], exhibits.everything([]), {}, predictions.predictions([]), audit.audit())
    Page(text)
    assert "There is no number of ours yet." in text and ">filled<" not in text and "<img" not in text
    assert "No figure yet: experiment=swift_figure6 was not run at any scale." in text
    assert "experiment=swift_figure6 scale=paper" in text


def test_the_same_records_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "write_tables", lambda *given: [])
    make(tmp_path / "runs", "plain")
    for name in ("swift_figure6", "swift_table8"):
        indexed(tmp_path / "runs", name, "mini", lambda job: "plain")
    one, two = (command.write_replication(replications(tmp_path / "runs"), tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    drawings = {"swift_figure6_mini.png", "swift_figure6_mini.pdf"}
    assert {path.name for path in one} == {"predictions.md", "predictions.csv", "audit.md", "index.html"} | drawings


def test_a_large_figure_is_a_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "plain")
    indexed(tmp_path, "swift_figure6", "mini", lambda job: "plain")
    found = replications(tmp_path)
    assert figures.draw(found, tmp_path / "a")["swift_figure6"][0].image.startswith("data:image/svg+xml;base64,")
    monkeypatch.setattr(figures, "SVG_LIMIT", 1000)
    assert figures.draw(found, tmp_path / "b")["swift_figure6"][0].image.startswith("data:image/png;base64,")


def test_a_damaged_record_costs_its_own_figure_only(tmp_path: Path) -> None:
    make(tmp_path, "plain")
    indexed(tmp_path, "swift_figure6", "mini", lambda job: "plain")
    (tmp_path / "plain" / "steps.parquet").write_bytes(b"PAR1")
    found = figures.draw(replications(tmp_path), tmp_path / "out")["swift_figure6"][0]
    assert found.image == "" and found.reason.startswith("A record cannot be read")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="a directory that can be written"):
        command.write_replication([], tmp_path / "file")


def test_texts_are_escaped_once(text: str) -> None:
    assert not re.search("&amp;(amp|lt|#)", text)
    assert page.joined(["CNN/DM, GSM8K", "", "GSM8K"]) == "CNN/DM|GSM8K"


# --- in a browser -----------------------------------------------------------------------------------------------------


def browsed(address: str, width: int) -> dict[str, Any]:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},800"]
    command += ["--virtual-time-budget=10000", "--dump-dom", address]
    dumped = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True).stdout
    found = re.search(r'data-found="([^"]*)"', dumped)
    assert found is not None, dumped[:500]
    return dict(json.loads(html.unescape(found[1])))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [1400, 360])
def test_the_page_in_a_browser(text: str, tmp_path: Path, width: int) -> None:
    """A window has at least 500 pixels, so a phone's is a frame."""
    (tmp_path / "probed.html").write_text(text.replace("<style>", f"{PROBE}<style>", 1), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    name = "probed" if width > 500 else "frame"
    found = browsed((tmp_path / f"{name}.html").as_uri(), max(width, 500))
    assert found.pop("errors") == [] and found.pop("small") == 0
    assert {view["width"] for view in found.values()} == {width}
    assert {name: view["overflow"] for name, view in found.items() if view["overflow"] > 0} == {}
    everything = {number.id: number for number in reported.numbers()}
    start, paper, cell = (found[name] for name in ("start", "paper", "cell"))
    count = len(start["exhibits"])
    assert sorted(start["numbers"]) == sorted(everything) and start["status"] == f"{count} of {count} shown"
    assert set(paper["numbers"]) == {one.id for one in everything.values() if one.paper == "swift"}
    assert paper["hash"] == "#paper=swift" and not any("swift_v1" in name for name in paper["exhibits"])
    chosen = {
        one.id for one in everything.values()
        if (one.paper, one.model, one.method) == ("swift", "LLaMA-2-70B", "SWIFT") and "GSM8K" in one.task.split(", ")
    }  # fmt: skip
    assert set(cell["numbers"]) == chosen and "swift_table2" in cell["exhibits"]
    assert cell["columns"] < start["columns"]
    assert "conflayers_figure3" in found["text"]["exhibits"] and len(found["text"]["exhibits"]) < 20
    assert found["none"]["exhibits"] == [] and found["none"]["nothing"] == 1
    assert found["hash"]["numbers"] and all("XSUM" in everything[one].task for one in found["hash"]["numbers"])
    assert "swift_table8" in found["anchor"]["exhibits"] and len(found["anchor"]["numbers"]) == len(everything)
