"""Settings are spelled once: constructor, refusals and help agree."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from methods.settings import Name
from ssd_bench.compose.build import task_names
from ssd_bench.compose.help import UNTARGETED, declared_settings, describe_settings
from ssd_bench.conf import CONF
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError
from ssd_bench.run.hardware import Options
from ssd_bench.run.tracking import Tracking
from ssd_bench.settings import Count, Fits, Range, Share, Whole, arguments, describe_type, fits, kinds, settings
from tests.runs import chosen, composed, program, python

PRESETS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
WRONG: dict[Any, tuple[Any, ...]] = {
    int: ("3", True, 1.5, 2.0, math.nan, [1]),
    float: ("0.5", True, math.nan, math.inf, [0.5]),
    bool: (1, "true"),
    str: (1, ["a"]),
    Sequence: ("12", 3),
    Mapping: ([1], "a"),
}


TARGETS = {chosen("method", preset)["_target_"] for preset in PRESETS}
TASK_TARGETS = {task: chosen("task", task)["_target_"] for task in task_names()}
TASKS = set(TASK_TARGETS.values())
DECLARED = [task for task, target in TASK_TARGETS.items() if declared_settings(target)]


def parts(kind: Any) -> Iterator[Any]:
    """A type and its parts, except for the contents of lists and tables."""
    yield kind
    for part in get_args(kind) if get_origin(kind) not in (Sequence, Mapping, Literal) else ():
        yield from parts(part)


def allowed(kind: Any) -> Iterator[Any]:
    for part in parts(kind):
        if isinstance(part, Range):
            yield from (limit for limit in (part.least, part.most) if limit is not None)


def refused(kind: Any) -> Iterator[Any]:
    """Values just beyond a number's limits, outside the choices, and of wrong types, also in a list or table."""
    made = list(parts(kind))
    if Any in made:
        return
    whole = int in made
    for part in made:
        if isinstance(part, Range):
            beyond = (part.least, -math.inf), (part.most, math.inf)
            yield from (
                limit + math.copysign(1, way) if whole else math.nextafter(limit, way)
                for limit, way in beyond
                if limit is not None
            )
            yield from (limit for limit in (part.above, part.below) if limit is not None)
        if get_origin(part) is Literal and str not in made:
            yield "none of them"
        if get_origin(part) in (Sequence, Mapping):
            *keys, held = get_args(part)
            yield from ({"a" if keys[0] is str else 1: bad} if keys else [bad] for bad in refused(held))
    known = [WRONG[part] for part in (get_origin(part) or part for part in made) if part in WRONG]
    yield from known[0] if len(known) == 1 else ()
    yield object()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_every_setting_and_no_other(preset: str) -> None:
    """Help and constructor agree, though the help imports nothing."""
    config = composed(f"method={preset}")
    shown = describe_settings(config)
    for section, made in (("method", config.method), ("method.search", config.method.get("search"))):
        if made is not None:
            target, declared = get_class(made["_target_"]), declared_settings(made["_target_"])
            names = {setting.name for setting in declared}
            assert set(made) - {"_target_", "_convert_"} == names == set(inspect.signature(target).parameters)
            types = {name: describe_type(kind) for name, kind in kinds(target).items()}
            assert {setting.name: describe_type(setting.kind) for setting in declared} == types
            assert all(f"  {section}.{name}=" in shown for name in names - {"search"})


@pytest.mark.parametrize("choice", [*(f"method={name}" for name in PRESETS), *(f"task={name}" for name in DECLARED)])
def test_a_choice_takes_its_limits_and_refuses_what_is_beyond_and_of_other_types(choice: str) -> None:
    section = choice.partition("=")[0]
    given: Any = OmegaConf.to_container(composed(choice)[section], resolve=True)
    instantiate(given)
    for where, values in ((section, given), (f"{section}.search", given.get("search", {}))):
        target = get_class(values["_target_"]) if values else None
        others = instantiate({k: v for k, v in values.items() if k not in ("_target_", "_convert_")}, _convert_="all")
        for name, kind in (kinds(target) if target else {}).items():
            assert all(fits(kind, value) for value in allowed(kind))
            for bad in refused(kind):
                with pytest.raises(ConfigError) as caught:
                    target(**others | {name: bad})  # type: ignore[misc]
                told = caught.value.expected.partition("; a text that looks like a number needs quotes")[0]
                assert (caught.value.field, told) == (f"{where}.{name}", describe_type(kind)), bad


@pytest.mark.parametrize(("made", "section"), [(Decoding, "decode"), (Options, "hardware"), (Tracking, "wandb")])
def test_decode_hardware_and_wandb_are_declared_too(made: type, section: str) -> None:
    given: Any = OmegaConf.to_container(composed()[section])
    assert list(given) == list(kinds(made)) == [setting.name for setting in declared_settings(UNTARGETED[section])]
    for name, kind in kinds(made).items():
        for bad in refused(kind):
            with pytest.raises(ConfigError, match=rf"^{section}\.{name}="):
                made(**given | {name: bad})


def test_every_setting_has_a_doc() -> None:
    for target in {*TARGETS, *TASKS, *UNTARGETED.values(), "methods.layer_search.SearchSettings"}:
        found = declared_settings(target)
        assert found or target in TASKS  # those with variants give a number for each: constructors of their own
        assert all(len(setting.doc) > 1 for setting in found), found


def test_the_help_of_no_preset_loads_torch() -> None:
    code = "import sys; from ssd_bench.compose.help import declared_settings\n"
    code += "all(map(declared_settings, sys.argv[1:])); sys.exit('torch' in sys.modules)"
    assert python("-c", code, *TARGETS, *TASKS).returncode == 0


def test_the_help_of_the_program() -> None:
    shown = program("run", "method=swift", "method.patience=7", "decode.temperature=0.5", "--help").stdout
    assert "method.patience=7: an integer >= 0\n      Candidates without progress" in shown
    for line in ("decode.temperature=0.5: a number >= 1e-06", "hardware.threads=null: ", "wandb.mode=disabled: one of"):
        assert f"  {line}" in shown


@settings("toy")
class Toy:
    few: Annotated[int, Range(1, 3, note=" (few)")]
    name: Name = "toy"
    share: Share | None = None
    kind: Literal["a", 1] = "a"
    list_of: Sequence[Count] = ()
    table: Mapping[str, Sequence[float]] | None = None
    even: Annotated[int, Fits("an even number", lambda n: n % 2 == 0)] = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.steps += 1


class Derived(Toy):
    """Subclass without declarations."""


def test_what_a_type_says() -> None:
    assert {name: describe_type(kind) for name, kind in kinds(Toy).items()} == {
        "few": "an integer in [1, 3] (few)",
        "name": "a text",
        "share": "a share in [0, 1], or null",
        "kind": "one of a, 1",
        "list_of": "a list, each an integer >= 1",
        "table": "a table, each a list, each a number, or null",
        "even": "an even number",
        "steps": "an integer",
    }


def test_configs_are_lists_and_tables() -> None:
    made = instantiate({"_target_": f"{__name__}.Derived", "few": 1, "list_of": [1, 2], "table": {"a": [1, 2.5]}})
    assert made.list_of == [1, 2] and made.table == {"a": [1, 2.5]} and made.steps == 1
    with pytest.raises(ConfigError, match=r"toy\.table={'a': \['1'\]} is invalid: expected a table"):
        Toy(1, table=OmegaConf.create({"a": ["1"]}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"toy\.kind=True is invalid: expected one of a, 1"):
        Toy(1, kind=True)  # type: ignore[arg-type]


def test_arguments_are_those_of_the_constructor() -> None:
    class Open:
        """Takes any name."""

        def __init__(self, few: int, *more: int, **others: int) -> None: ...

    assert arguments("toy", Toy, {"few": 0, "share": "x"}) == {"few": 0, "share": "x"}  # which the class itself checks
    assert arguments("toy", Open, {"few": 1, "any": 2}) == {"few": 1, "any": 2}
    for made, given, said in (
        (Toy, None, "toy=None is invalid: expected a table of few, name"),
        (Toy, {"few": 1, "fewer": 2}, "toy.fewer=2 is invalid: toy has no such setting; its settings are few, name"),
        (Toy, {"name": "a"}, "toy.few is missing: it must be given"),
        (Open, {}, "toy.few is missing: it must be given"),
    ):
        with pytest.raises(ConfigError) as caught:
            arguments("toy", made, given)
        assert str(caught.value).startswith(said)


def test_what_declares_nothing_has_nothing_to_show() -> None:
    assert declared_settings("collections.OrderedDict") == declared_settings("ssd_bench.contract.task.Prompt") == []
    assert [setting.name for setting in declared_settings(f"{__name__}.Derived")] == list(kinds(Derived))


def test_whole_numbers_are_numbers() -> None:
    assert fits(Share, 1) and fits(float, 3) and not fits(Whole, 3.0) and not fits(Share, True)
