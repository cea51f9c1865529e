"""Plug-ins: the example package of docs/tutorials/plugin.md, installed by pip, and packages made here."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ssd_bench import conf, plug_ins
from ssd_bench.compose.help import describe_plug_ins
from ssd_bench.cost.roofline import simulated_names
from ssd_bench.cost.shapes import _is_shaped
from ssd_bench.model.decoder import Decoder
from ssd_bench.records.reader import find_runs, load_run
from ssd_bench.sweep import sweep
from tests.lossless import check_greedy
from tests.runs import CPU, ROOT, planned, program

Install = Callable[..., None]
EXAMPLE = ROOT / "docs" / "tutorials" / "example_plugin"
PAGE = (ROOT / "docs" / "tutorials" / "plugin.md").read_text(encoding="utf-8")
SHORT = ("limit=2", "decode.max_new_tokens=8", *CPU)
AR = "_target_: methods.ar.AR\nname: plain\n"
ENDING = "_target_: made_ending.work.Ending\nname: ending\n"


def forget() -> None:
    plug_ins.plug_ins.cache_clear()
    plug_ins._entries.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which pip installed the example."""
    folder = tmp_path_factory.mktemp("site")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder))
    command = (sys.executable, "-m", "pip", "install", *offline, str(EXAMPLE))
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package made of files, as pip would; or adds a folder with an installed one."""
    modules = set(sys.modules)

    def add(name: str = "", files: dict[str, str] | None = None, folder: Path | None = None) -> None:
        folder = folder or tmp_path / f"site_{name}"
        if files is not None:
            about = folder / f"{name}-1.0.dist-info"
            about.mkdir(parents=True)
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
            (about / "entry_points.txt").write_text(f"[ssd_bench.conf]\n{name} = {name}\n", encoding="utf-8")
        for file, text in (files or {}).items():
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(folder)
        forget()

    yield add
    monkeypatch.undo()
    forget()
    for module in set(sys.modules) - modules:
        if module.partition(".")[0].startswith(("ssd_bench_example", "made_")):
            del sys.modules[module]


def refused(*words: str) -> str:
    end = program(*words)
    assert end.returncode == 2 and "Traceback" not in end.stderr, end.stderr
    return end.stderr


def described(shown: str) -> str:
    return re.split(r"which the list above includes:\n", shown)[1].strip().splitlines()[0]


def test_the_installed_example_has_help_and_runs(site: Path, install: Install, no_page: None, tmp_path: Path) -> None:
    install(folder=site)
    shown = program("run", "method=every_second", "--help").stdout
    assert described(shown) == "ssd-bench-example 0.1.0: method=every_second; task=capitals; hardware=one_thread"
    assert described(shown) in PAGE and "method.draft_len=4: an integer >= 1" in shown
    for group, name in (("method", "every_second"), ("task", "capitals"), ("hardware", "one_thread")):
        assert re.search(rf"^ *{group}: .*\b{name}\b", shown, re.MULTILINE), shown
    runs = f"runs_dir={tmp_path / 'runs'}"
    swept = program("-m", "method=ar,every_second", "task=capitals", "hardware=one_thread", *SHORT[:2], *CPU[1:], runs)
    assert swept.returncode == 0, swept.stderr
    assert re.search(r"^ +every_second +\d.* 2/2$", swept.stdout, re.MULTILINE), swept.stdout
    assert re.search(r"^\| \S.*\| every_second +\|", program("report", runs).stdout, re.MULTILINE)
    assert "2 done" in program("status", runs).stdout
    assert re.search(r"`method.draft_len` \| `every_second`", program("options", "about=every_second").stdout)
    (record,) = (run for run in map(load_run, find_runs(tmp_path / "runs")) if run.header.method == "every_second")
    files = [path for path in (site / "ssd_bench_example").rglob("*") if path.suffix in (".py", ".yaml")]
    digests = b"".join(sorted(hashlib.sha256(path.read_bytes()).digest() for path in files))
    entry = {"distribution": "ssd-bench-example", "version": "0.1.0", "module": "ssd_bench_example"}
    assert len(files) == 6
    assert record.header.provenance.plug_ins == [entry | {"sha256": hashlib.sha256(digests).hexdigest()}]
    assert record.prompts.loc[record.prompts["arm"] == "method", "lossless"].tolist() == ["identical"] * 2


def test_the_example_is_lossless_and_passes_its_own_tests(
    site: Path, install: Install, decoders: Callable[..., Decoder]
) -> None:
    install(folder=site)
    every_second: Any = importlib.import_module("ssd_bench_example.every_second")
    assert check_greedy(lambda rng: every_second.EverySecond(draft_len=rng.choice([1, 4])), decoders, cases=60) > 0
    module = ModuleType("test_every_second")
    exec((EXAMPLE / "tests" / "test_every_second.py").read_text(encoding="utf-8"), vars(module))
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_the_page_links_the_files_and_its_commands_work(
    site: Path, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "Forecast", lambda folders: SimpleNamespace(hours=lambda run: None))  # reads all records
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    package = EXAMPLE / "src" / "ssd_bench_example"
    files = [EXAMPLE / "pyproject.toml", *package.glob("[!_]*.py"), *package.glob("conf/*/*.yaml")]
    linked = {EXAMPLE.parent / target for target in re.findall(r"\]\((example_plugin/[^)]+)\)", PAGE)}
    assert len(files) == 6 and {*files[1:]} <= linked and files[0].read_text(encoding="utf-8") in blocks
    (listed,) = (text for text in blocks if text.startswith("pyproject.toml\n"))
    assert all((EXAMPLE / line.split()[0]).is_file() for line in listed.splitlines())
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    pip, *lines = commands.splitlines()
    assert pip == "pip install --no-deps docs/tutorials/example_plugin" and len(lines) == 3
    install(folder=site)
    for line in lines:
        words = line.removeprefix("python -m ssd_bench ").split()
        end = program(*words, *{"-m": ["dry=true"], "report": [f"runs_dir={tmp_path}"]}.get(words[0], []))
        assert end.returncode == (2 if words == ["report"] else 0), end.stderr  # no record here


@pytest.mark.parametrize("group", conf.CHOSEN)
def test_choices_are_those_of_the_project_and_of_every_plug_in(group: str, install: Install) -> None:
    ours = {path.stem for path in (conf.CONF / group).glob("*.yaml")}
    assert set(conf.choices(group)) == ours
    install("made_a", {f"conf/{group}/alpha.yaml": AR})
    install("made_b", {f"conf/{group}/beta.yaml": AR})
    assert conf.choices(group) == sorted([*ours, "alpha", "beta"])
    assert [str(conf.plug_in_with(group, name)) for name in ("alpha", "beta")] == ["made_a 1.0", "made_b 1.0"]


def test_without_plug_ins_the_help_says_where_to_read_about_them() -> None:
    assert describe_plug_ins().strip() == "none is installed (docs/tutorials/plugin.md)"


def test_a_name_of_several_packages_is_refused_where_it_is_chosen(install: Install, tmp_path: Path) -> None:
    runs = (f"runs_dir={tmp_path / 'runs'}", "task=gsm8k", *SHORT)
    install("made_a", {"conf/method/swift.yaml": AR, "conf/method/twin.yaml": AR, "conf/task/aime24.yaml": AR})
    install("made_b", {"conf/method/twin.yaml": AR, "conf/hardware/sim_h100.yaml": "device: simulated\n"})
    message = refused("method=swift", *runs)
    assert "method='swift'" in message and "ssd-bench itself and made_a 1.0 have a method of this name" in message
    assert "made_a 1.0 and made_b 1.0 have a method of this name" in refused("method=twin", *runs)
    assert "have a task of this name" in refused("method=ar", *(word for word in runs if word != "task=gsm8k"))
    assert "ssd-bench itself and made_b 1.0" in refused("advise", "model=llama3_1_8b", "hardware=sim_h100")
    swept = program("-m", "method=ar,swift", *runs)
    assert swept.returncode == 2 and len(find_runs(tmp_path / "runs")) == 1 and "made_a 1.0" in swept.stdout


def test_a_broken_plug_in_stops_only_the_runs_that_choose_it(install: Install, tmp_path: Path) -> None:
    chosen = ("task=gsm8k", f"runs_dir={tmp_path / 'runs'}", *SHORT)
    odd = {
        "__init__.py": "raise RuntimeError('this package needs a GPU')\n",
        "work.py": "def (\n",
        "conf/method/broken.yaml": "_target_: made_odd.work.Broken\nname: broken\n",
        "conf/method/unread.yaml": "_target_: made_odd.work.Broken\n\t: 1\n",
        "conf/model/unread.yaml": "shape: {n_layers: many\n",
        "conf/model/unshaped.yaml": "shape: {colour: 1}\n",
    }
    install("made_odd", odd)
    install("made_gone", {})
    end = program("method=ar", *chosen)
    assert end.returncode == 0 and "Traceback" not in end.stderr
    warning = "warning: plug-in made_gone of made_gone 1.0 is not used: its package made_gone is not installed"
    assert warning in " ".join(end.stderr.split())
    message = refused("method=broken", *chosen)
    assert "made_odd.work.Broken" in message and "this package needs a GPU" in message
    assert "it belongs to the plug-in made_odd 1.0" in message
    assert "unread.yaml:2" in refused("method=unread", *chosen)
    shown = program("run", "--help")
    assert shown.returncode == 0 and "made_odd 1.0: model=unread,unshaped; method=broken,unread" in shown.stdout
    listed = program("options", "about=window")
    assert listed.returncode == 0 and listed.stderr.count("warning: no options of method=") == 2
    assert [_is_shaped(name) for name in ("llama3_1_8b", "unread", "unshaped")] == [True, False, False]
    assert "made_odd" not in sys.modules


def test_models_and_machines_of_a_plug_in_are_those_of_advise(install: Install) -> None:
    text = (conf.CONF / "hardware" / "sim_h100.yaml").read_text(encoding="utf-8")
    model = (conf.CONF / "model" / "llama3_2_1b.yaml").read_text(encoding="utf-8")
    slower = text.replace("H100 SXM 80GB", "Slow").replace("bandwidth_gb_s: 3350", "bandwidth_gb_s: 335")
    install("made_site", {"conf/hardware/sim_slow.yaml": slower, "conf/model/mine_1b.yaml": model})
    advice = program("advise", "model=mine_1b", "hardware=sim_slow")
    assert advice.returncode == 0 and "usable run of mine_1b" in advice.stdout, advice.stderr
    assert "NVIDIA Slow" in advice.stdout
    assert "sim_slow" in simulated_names()


def test_a_run_is_stale_after_a_change_of_its_plug_in(site: Path, install: Install, tmp_path: Path) -> None:
    shutil.copytree(site / "ssd_bench_example", tmp_path / "ssd_bench_example")
    shutil.copytree(next(site.glob("*.dist-info")), tmp_path / "ssd_bench_example-0.1.0.dist-info")
    install(folder=tmp_path)

    def key(*options: str) -> str:
        return planned(tmp_path / "runs", *options, "limit=1").identity.content_key

    chosen, others = ("method=every_second", "task=gsm8k"), ("method=ar", "task=gsm8k")
    first, plain = key(*chosen), key(*others)
    (tmp_path / "ssd_bench_example" / "helper.py").write_text("COUNT = 1\n", encoding="utf-8")
    assert key(*chosen) != first and key(*others) == plain


def test_a_record_names_a_plug_in_that_has_no_code(install: Install, tmp_path: Path) -> None:
    install("made_site", {"conf/hardware/room.yaml": "defaults:\n  - cpu\n  - _self_\nthreads: 1\n"})
    runs = f"runs_dir={tmp_path / 'runs'}"
    assert program("method=ar", "task=gsm8k", "hardware=room", *SHORT[:2], *CPU[1:], runs).returncode == 0
    (path,) = find_runs(tmp_path / "runs")
    (entry,) = json.loads((path / "run.json").read_text(encoding="utf-8"))["provenance"]["plug_ins"]
    assert (entry["distribution"], entry["version"]) == ("made_site", "1.0")


UNNAMED = [(value, f"value {value!r} names no package") for value in ("", "../made_odd", "made-odd")]


@pytest.mark.parametrize(("value", "fault"), [*UNNAMED, ("made..odd", "package made..odd is not installed")])
def test_an_entry_point_of_no_package_is_a_warning(value: str, fault: str, install: Install, tmp_path: Path) -> None:
    install("made_odd", {"conf/method/odd.yaml": AR})
    points = tmp_path / "site_made_odd" / "made_odd-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[ssd_bench.conf]\nodd = {value}\n", encoding="utf-8")
    forget()
    end = program("method=ar", "hardware=cpu", "dry=true")
    assert end.returncode == 0 and end.stderr.count("\n") == 1
    assert end.stderr.startswith(f"warning: plug-in odd of made_odd 1.0 is not used: its {fault};")


@pytest.mark.parametrize("points", [b"[ssd_bench.conf]\na b c\n", b"[x]\na\n", b"[ssd_bench.conf]\ncaf\xe9 = a\n"])
@pytest.mark.parametrize("words", ["method=ar dry=true", "status"])
def test_unreadable_entry_points_are_named(points: bytes, words: str, install: Install, tmp_path: Path) -> None:
    install("made_odd", {})
    (tmp_path / "site_made_odd" / "made_odd-1.0.dist-info" / "entry_points.txt").write_bytes(points)
    forget()
    message = refused(*words.split())
    assert message.startswith("error: package='made_odd 1.0' is invalid: expected lines NAME = VALUE")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: caf\xe9\n", "{}=latin"), ("\xff\xfe", "-m {}=latin"), (f"# {'-' * 9000} \xe9\n", "run {}=latin --help")],
)
def test_a_config_that_is_not_in_utf_8_is_named(text: str, words: str, install: Install, tmp_path: Path) -> None:
    install("made_latin", {"conf/method/latin.yaml": AR, "conf/model/latin.yaml": "shape: {}\n"})
    for group in ("method", "model"):
        path = tmp_path / "site_made_latin" / "made_latin" / "conf" / group / "latin.yaml"
        path.write_bytes(path.read_bytes() + text.encode("latin-1"))
        message = refused(*words.format(group).split())
        assert f"config={str(path)!r} is invalid: expected" in message and message.count("\n") == 1
    listed = program("options", "about=window")
    assert listed.returncode == 0 and "no options of method=latin" in listed.stderr
    assert not _is_shaped("latin")


ENDS = {"method=ending": "raise SystemExit(0)", "-m method=ending": "import sys; sys.exit()"}
ENDS["method=ending dry=true"] = "raise SystemExit('no GPU')"


@pytest.mark.parametrize(("words", "statement"), ENDS.items())
def test_code_that_ends_the_program_is_named(statement: str, words: str, install: Install, tmp_path: Path) -> None:
    install("made_ending", {"work.py": statement, "__init__.py": "", "conf/method/ending.yaml": ENDING})
    end = program(*words.split(), *SHORT, f"runs_dir={tmp_path / 'runs'}")
    assert end.returncode == 2 and "Traceback" not in end.stderr
    assert "SystemExit" in end.stderr + end.stdout and "the plug-in made_ending 1.0" in end.stderr + end.stdout


def test_a_method_that_ends_the_program_fails_its_run(install: Install, tmp_path: Path) -> None:
    code = "import sys\nfrom methods.ar import AR\nclass Ending(AR):\n    def start(self, prefill): sys.exit(0)\n"
    install("made_ending", {"work.py": code, "__init__.py": "", "conf/method/ending.yaml": ENDING})
    with pytest.raises(RuntimeError, match="the code of the run ended the program"):
        program("method=ending", "task=gsm8k", *SHORT, f"runs_dir={tmp_path / 'runs'}")
