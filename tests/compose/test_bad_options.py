"""Invalid options: one message that names the field, exit code 2, and nothing called, loaded or written."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from ssd_bench.cli import dispatch
from ssd_bench.commands import run as command
from ssd_bench.compose.application import EXPECTED
from ssd_bench.run import run
from tests.runs import python

Refused = Callable[[str], str]
Capture = pytest.CaptureFixture[str]
MADE = "{_target_:os.mkdir,path:made}"  # would be seen
LATENCY = "{{t_mlp_ms:{},t_attn_slope_ms:0,t_attn_intercept_ms:1}}"
HUGE = "9" * 400  # no float holds it

# field -> values, one a word; ~ is the field removed
VALUES = {
    "model": "null 1",
    "method": "null",
    "task": "null true",
    "data": "null",
    "hardware": "null",
    "decode": "null",
    "decode.mode": "abc",
    "decode.temperature": "abc 0 1e-300",
    "decode.top_p": "0 1.1",
    "decode.top_k": f"-1 {HUGE}",
    "decode.max_new_tokens": "true 0",
    "decode.reuse_prefix": "abc",
    "hardware.device": "~ null 1 [] meta",
    "hardware.dtype": "~ int8",
    "hardware.threads": "1.5 0",
    "hardware.warmup": "-1",
    "hardware.kernels": "abc",
    "hardware.isa": "null",
    "hardware.exclusive": "abc",
    "hardware.latency": "3 {t_mlp_ms:1} " + " ".join(map(LATENCY.format, ("abc", "inf", "-1"))),
    "wandb": "~ null abc",
    "wandb.mode": "~ abc",
    "wandb.project": "~ [a]",
    "limit": "~ -1 1.5 true 1,2 9223372036854775808",
    "repeats": "~ 0 null 10001 99999999999999999999",
    "seed": f"abc null 9223372036854775808 {HUGE}",
    "baseline": "~ maybe null",
    "runs_dir": "~ null '' 1 FILE",
    "force": "~ maybe",
    "dry": "maybe null",
    "minutes": "5",
    "retry": "failed 1",
    "shard": "3 0/2 3/2 1/0 a/b 1/2/3",
    "variant": "~ nope 1",
    "method._target_": f"~ methods.knapspec methods.knapspec.Nope tasks.aime.AIME os.mkdir nope.nope null {MADE}",
    "method.name": f"1 null '' a/b {MADE}",
    "task._target_": f"~ methods.ar.AR os.mkdir {MADE}",
    "task.hub": "1",
    "task.max_new_tokens": "0 abc",
    "data._target_": f"~ tasks.aime.AIME os.mkdir {MADE}",
    "model._target_": f"~ transformers.AutoModel os.mkdir {MADE}",
    "model.name": "~ 1 null a/b",
    "model.template": "xml null",
    "model.embedded": "nope 1 null",
    "model.shape": "1",
}

GGUF = "bits=0 size=x sha256=abc file=../m.gguf file=m.bin part=1 wheels=[] wheels=[a==1] wheels=null "
GGUF += "origin=elsewhere origin=hub hub=1"

# field -> whole lines
LINES = {
    "decode.mode": ("decode.top_k=3", "decode.temperature=0.5"),
    "decode.x": ("+decode.x=1",),
    "decode": ("~decode", "decode=nope"),
    "hardware.x": ("+hardware.x=1",),
    "hardware": ("~hardware", "hardware=nope"),
    "hardware.device": ("hardware=sim_h100",),
    "wandb.x": ("+wandb.x=1",),
    "seed": ("seed=${nope}",),
    "variant": ("task=gsm8k variant=nope", "task=gsm8k variant=1"),
    "shard": ("shard=1/99 limit=4", "shard=1/2 method=swift", "shard=1/2 method=adaptive", "shard=1/2 task=stream"),
    "nonsense": ("nonsense=1", "+nonsense=1", "~nonsense"),
    "method": ("~method", "method=nope", "++method._partial_=true", "+method._args_=[1]", "+method._recursive_=false"),
    "method.x": ("+method.x=1", f"+method.x={MADE}", f"+method.x=[{MADE}]", f"+method.x.y={MADE}"),
    "method.search": (
        *(f"method=knn_ssd method.search={value}" for value in ("null", MADE)),
        *(f"method=knn_ssd method.search._target_={value}" for value in ("os.mkdir", "methods.ar.AR")),
        "method=knn_ssd ~method.search._target_",
        "method=knn_ssd +method.search.x=1",
        "method=knn_ssd method.search.iterations=abc",
    ),
    "method.draft_window": (
        *(f"method=swift method.draft_window={window}" for window in ("[2147483648,4]", "[4,0]", f"[4,{HUGE}]")),
        *(f"method={name} method.draft_window=[4,2147483648]" for name in ("swift", "window_draft", "int4_draft")),
    ),
    "method.windows": ("method=adaptive method.windows=[[4,2147483648]]",),
    "method.draft_len_grid": ("method=del method.draft_len_grid=[0,2147483648]", f"method.draft_len_grid=[0,{HUGE}]"),
    "method.draft_lens": ("method=layerskip_swept method.draft_lens=[2147483648]",),
    "method.window": ("method=lookahead method.ngram=2147483648", "method=lookahead method.window=2147483648"),
    "method.interval": (f"method=clasp method.interval={HUGE}", f"method=clasp method.interval=-{HUGE}"),
    "method.factor": (f"method=suffix method.factor={HUGE}",),
    "task": ("~task", "task=nope", "+task._partial_=true", "+task.x=1"),
    "task.parts": (
        *(f"task=stream task.parts.gsm8k={value}" for value in ("null", MADE)),
        *(f"task=stream task.parts.gsm8k._target_={value}" for value in ("os.mkdir", "tasks.stream.Stream")),
        "task=stream task.parts=null",
        "task=stream ~task.parts.gsm8k._target_",
    ),
    "calibrate": (
        "task@calibrate=gsm8k",
        "+calibrate=1",
        f"+calibrate={MADE}",
        "method=knn_ssd +calibrate=null",
        "method=knn_ssd task@calibrate=gsm8k calibrate._target_=builtins.dict",
    ),
    "data": ("~data", "data=nope", "+data.x=1", "+data._partial_=true"),
    "data.root": tuple(f"data=local data.root={value}" for value in ("null", "1", "FILE")),
    "model": ("~model", "model=nope", "+model.x=1", "+model._partial_=true", "+model.path=a"),
    "model.template": ("model=local", "model=local model.path=a"),
    "model.shape": ("model.shape.n_layers=99", "+model.shape.x=1"),
    "model.hub": ("model.embedded=null +model.hub=1",),
    "model.gguf": (
        *(f"model.embedded=null +model.gguf={value}" for value in ("1", "{package:1}", "{package:a}", "{file:b}")),
        *(f"model=smollm2_135m model.gguf.{value}" for value in GGUF.split()),
    ),
}


def line(field: str, value: str) -> str:
    option = f"~{field}" if value == "~" else f"{field}={value}"
    return f"decode=sample {option}" if field in ("decode.temperature", "decode.top_p", "decode.top_k") else option


BAD = [(field, line(field, value)) for field, values in VALUES.items() for value in values.split()]
BAD += [(field, options) for field, lines in LINES.items() for options in lines]

ELSEWHERE = ("shard=1/", "hardware.device", "hardware.latency", "hardware=sim", "data.root", "model.shape.n_layers")
"""Options that only machine, files or weights can refuse."""


@pytest.fixture(scope="module", autouse=True)
def all_else_uncollected() -> Iterator[None]:
    """Each config is many objects: otherwise torch's are searched for garbage again and again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """The message of options that a run refuses before it loads or writes anything, in this process."""
    monkeypatch.setattr(run, "execute", lambda _: pytest.fail("accepted"))

    def message(options: str) -> str:
        GlobalHydra.instance().clear()
        assert dispatch(["hardware=cpu", "runs_dir=runs", *options.split()]) == 2
        assert [path.name for path in folder.iterdir()] == ["FILE"]
        return capsys.readouterr().err

    return message


@pytest.mark.parametrize(("field", "options"), BAD, ids=[options for _, options in BAD])
def test_a_bad_option_is_one_error(field: str, options: str, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with `dry=true`, which looks at nothing that depends on this machine or the model."""
    described: list[str] = []
    work = command._run

    def run_and_describe(cfg: DictConfig, *rest: Any, **others: Any) -> Path | None:
        dry = cfg.copy()
        dry.dry = True
        with pytest.raises(EXPECTED) as error:
            work(dry, *rest, **others)
        described.append(str(error.value))
        return work(cfg, *rest, **others)

    if field != "dry" and not any(one in options for one in ELSEWHERE):
        monkeypatch.setattr(command, "_run", run_and_describe)
    message = refused(options)
    assert message.startswith("error: ") and message.count("error: ") == 1 and "Traceback" not in message
    assert all(field in said for said in (message, *described))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("decode=sample decode.temperature=inf", "decode.temperature=inf is invalid: expected a number >= 1e-06"),
        ("limit=9223372036854775808", "expected an integer >= 1, or null, of fewer than 19 digits"),
        ("method=swift method.draft_window=[4,2147483648]", "sinks >= 0 and recent >= 1, each at most 2147483647"),
        ("hardware.threads=1.5", "hardware.threads=1.5 is invalid: expected an integer"),
        ("~seed", "seed is missing: it must be given"),
        ("wandb=null", "wandb=None is invalid: expected a table of mode, project"),
        ("+wandb.x=1", "wandb.x=1 is invalid: wandb has no such setting; its settings are mode, project"),
        ("wandb.project=''", "wandb.project='' is invalid: expected the name of a project"),
        ("~data", "data is missing: expected one of hub, local, sample"),
        ("task._target_=builtins.dict", "task='builtins.dict' is invalid: expected task._target_ to name the class of"),
        (f"method.name={MADE}", "method.name._target_ to name the class of a task or of settings"),
        ("runs_dir=FILE/below", "runs_dir='FILE/below' is invalid: expected a folder"),
        ("model=local model.path=a", "it must be given: model.template=chat or model.template=plain\n"),
        ("seed=${nope}", "seed='${nope}' is invalid: Interpolation key 'nope' not found: ${...} refers"),
        ("method._target_=ar.AR", "(No module named 'ar': put the folder that holds ar on PYTHONPATH)"),
        ("method._target_=methods.nope.A", "(No module named 'methods.nope')"),
        ("method._target_=AR", "to name the class of a Method, as module.Class\n"),
        ("method._target_=os.mkdir", "to name the class of a Method\n"),
        ("method=fixed_layers method.name=ar", "method.name='ar' is invalid: expected another name: ar is the name of"),
        ("lmit=3", "lmit=3 is invalid: there is no such option; the options are model, method, task"),
        ("a.b.c=x", "a.b.c='x' is invalid: there is no such option; the options are model"),
        ("method=ar method.nodes=3", "method.nodes=3 is invalid: method has no such setting; its settings are name\n"),
        ("data.root=a", "data.root='a' is invalid: data has no such setting; it has none; data=local has it\n"),
        ("method=ar method.draft_len=3", "its settings are name; method=adaptive or asd or clasp or another has it\n"),
        ("method=knn_ssd method.search.x=1", "method.search.x=1 is invalid: method.search has no such setting"),
        ("model.template.sytem=x", "no such setting; its settings are form, enable_thinking, system, kwargs\n"),
        ("model.template.kwargs.mood=x", "use +model.template.kwargs.mood=x"),
        ("model=llama3_8b model.embedded=a", "use +model.embedded=a"),
        ("~repeats", "repeats is missing: it must be given"),
        ("~model", "model is missing: expected one of "),
        ("data=local", "data.root is missing: expected data.root=DIR"),
        ("model=local model.template=chat", "model.path is missing: it must be given"),
        ("hardware=cpu ~hardware.dtype", "hardware.dtype is missing: it must be given"),
    ],
)
def test_the_message_says_what_is_allowed(options: str, said: str, refused: Refused) -> None:
    assert said in refused(options)


def test_so_it_is_in_a_process_of_its_own(folder: Path) -> None:
    """Output said once per process, or at an import, would be one more line."""
    options = ["wandb=null", "~seed", "method._target_=os.mkdir"]
    code = (
        "import sys; from ssd_bench.cli import dispatch\n"
        "sys.exit(0 if all(dispatch(['runs_dir=runs', option]) == 2 for option in sys.argv[1:]) else 'accepted')"
    )
    done = python("-c", code, *options, cwd=folder)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 3 and all(line.startswith("error: ") for line in lines), lines
    assert not done.stdout and [path.name for path in folder.iterdir()] == ["FILE"]


PARTS = {
    "taps": "    taps = Taps()",
    "reuse_prefix": "    reuse_prefix = False",
    "greedy_only": "    greedy_only = False",
    "check": "    def check(self, dims): ...",
    "prepare": "    def prepare(self, probe, samples): ...",
    "start": "    def start(self, prefill): ...",
    "propose": "    def propose(self, context): ...",
    "observe": "    def observe(self, verification, probe): ...",
}


@pytest.mark.parametrize(
    ("without", "instead", "said"),
    [
        ("observe", "", "to name the class of a Method; M lacks observe\n"),
        ("prepare start", "", "to name the class of a Method; M lacks prepare, start\n"),
        ("taps", "", "to name the class of a Method; its objects lack taps\n"),
        ("reuse_prefix greedy_only", "", "its objects lack reuse_prefix, greedy_only\n"),
        ("taps", "    taps = (1, 2)", "method.taps=(1, 2) is invalid: expected a Taps"),
    ],
)
def test_what_a_method_lacks_is_named(
    without: str, instead: str, said: str, refused: Refused, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("own")
    head = ["from ssd_bench.contract.method import Taps", "class M:", "    def __init__(self, name): self.name = name"]
    lines = [line for name, line in PARTS.items() if name not in without.split()]
    (folder / f"{folder.name}.py").write_text("\n".join([*head, *lines, instead]), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    assert said in refused(f"method=ar method.name=x method._target_={folder.name}.M")


@pytest.mark.parametrize(
    ("text", "chosen", "said"),
    [
        ("ngram 2\n", "=odd", ":3' is invalid: expected valid YAML (while scanning a simple key, line 2: could not"),
        ("a:\n\t- x\n", "=ar,odd -m", r":3' is invalid: expected valid YAML (while scanning for the next token: found"),
        ("name: a\nname: b\n", "=odd", ":3' is invalid: expected valid YAML (while constructing a mapping, line 1: "),
        ("name: \x07\n", "=odd", "' is invalid: expected valid YAML (character 31: special characters are not"),
    ],
)
def test_a_file_that_is_no_yaml_is_named_with_its_line(
    text: str, chosen: str, said: str, refused: Refused, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "method").mkdir()
    (folder / "method" / "odd.yaml").write_text(f"_target_: methods.ar.AR\n{text}", encoding="utf-8")
    message = refused(f"hydra.searchpath=[file://{folder}] method{chosen}")
    assert f"odd.yaml{said}" in message and message.count("\n") == 1


@pytest.mark.parametrize("value", ["a=b", "a${x}b", "a[x]b", "{a", "a,b", "~", "“a”", "a#b", 'a"b', "it's"])
def test_a_value_with_characters_of_the_grammar_gets_its_quoted_form(value: str, refused: Refused) -> None:
    message = refused(f"runs_dir={value}")
    assert message.count("\n") == 1
    (argument,) = shlex.split(message.partition("as text it is ")[2])
    quoted = OverridesParser.create().parse_override(argument).value()
    assert OmegaConf.create({"runs_dir": quoted}).runs_dir == value
    if value != "a,b":
        assert "as text it is" in refused(f"seed=1,2 runs_dir={value} -m")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("model=local model.path=a model.template.form=???", "model.template.form is missing: it must"),
        ("seed=???", "seed is missing: it must be given"),
        ("minutes=nan", "minutes=nan is invalid: expected null except in a sweep"),
        *(
            (f"experiment=swift_table2 minutes={value} -m", f"minutes='{value}' is invalid: expected a number")
            for value in ("nan", "inf", "0", "abc", "")
        ),
        ("method=glob(nope*) -m", "method='glob(nope*)' is invalid: expected at least one value"),
        ("seed=range(3,3) -m", "seed='range(3,3)' is invalid: expected at least one value"),
        ("seed=range(0,3,0) -m", "seed='range(0,3,0)' is invalid: expected values that can be listed"),
        ("seed=range(0,99999999999) -m", "seed='range(0,99999999999)' is invalid: expected at most 100000 values"),
        ("seed=range(0,1000) limit=range(1,1001) -m", "-m='1000000 runs' is invalid: expected at most 100000 in one"),
        (f"model.name={'m' * 300}", "model.name='mmmmmmmmmmmmmmmmmmmmmmmmmmmmmm...mm"),
        (f"method.name={'m' * 175}", "(175 characters)' is invalid: expected a shorter name: model, method and task"),
        (f"method={'m' * 300}", "method='mmmmmmmmmmmmmmmmmmmmmmmmmmmmmm...mm"),
        (f"{'m' * 300}=1", "option='mmmmmmmmmmmmmmmmmmmmmmmmmmmmmm...mm"),
        (f"seed={'9' * 5000}", "(5000 characters)' is invalid: expected a value in Hydra's grammar (Exceeds"),
        (
            f"variant={'[' * 500}{']' * 500}",
            "(1000 characters)' is invalid: expected a value in Hydra's grammar (max",
        ),
        (f"variant={'x' * 50000}", " (50075 characters)"),
        ("=3", "option='=3' is invalid: expected NAME=VALUE"),
    ],
)
def test_what_selects_nothing_and_what_is_too_long_is_one_message(options: str, said: str, refused: Refused) -> None:
    message = refused(options)
    assert message.startswith("error: ") and message.count("\n") == 1 and said in message and len(message) < 6000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("experiment=swift_table22", "='swift_table22' is invalid: expected a table, a figure or a run set, such as "),
        ("experiment=swift_table2,typo", "experiment='typo' is invalid"),
        ("experiment=typo scale=mini dry=true", "experiment='typo' is invalid"),
        ("scale=huge experiment=typo", "experiment='typo' is invalid"),
        ("experiment=swift_table2", "experiment=swift_table2 needs a sweep: python -m ssd_bench -m "),
    ],
)
def test_an_unknown_experiment_is_named_before_all_else(options: str, said: str, refused: Refused) -> None:
    message = refused(options)
    assert said in message and message.count("\n") == 1
    assert "swift_table2" in message or "swift_table22" not in options


@pytest.mark.parametrize("words", ["advise", "replay", "compare", "compare a", "pack", "validate", "reproduce"])
def test_what_nobody_gave_is_missing(words: str, folder: Path, capsys: Capture) -> None:
    assert dispatch(words.split()) == 2
    message = capsys.readouterr().err
    assert " is missing: expected " in message and "None" not in message and message.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        *(f"claims runs_dir={place}" for place in ("nowhere", "FILE", "nowhere.zip", "FILE/below")),
        "report runs_dir=nowhere",
        "status runs_dir=FILE",
        "compare b=. a=nowhere",
        "validate record=nowhere.zip",
        "export to=out run=nowhere",
        "pack out=a.zip runs_dir=nowhere",
        "explain run=FILE",
    ],
)
def test_a_missing_folder_of_records_is_refused_in_the_same_words(words: str, folder: Path, capsys: Capture) -> None:
    assert dispatch(words.split()) == 2
    shown = capsys.readouterr()
    assert "expected an existing folder of runs, the folder of a run, or a pack (.zip)" in shown.err
    assert shown.err.count("\n") == 1 and not shown.out
    assert [path.name for path in folder.iterdir()] == ["FILE"]


def test_an_empty_folder_of_records_gets_few_lines(folder: Path, capsys: Capture) -> None:
    (folder / "empty").mkdir()
    for command_name, code in (("claims", 0), ("status", 0), ("report", 2)):
        assert dispatch([command_name, "runs_dir=empty"]) == code
        shown = capsys.readouterr()
        assert 1 <= (shown.out + shown.err).count("\n") <= 6
    assert dispatch(["claims", "runs_dir=empty", "out=claims.csv"]) == 0
    assert (folder / "claims.csv").read_text(encoding="utf-8").count("\n") == 1
