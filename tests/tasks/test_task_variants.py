"""Variants of tasks: each paper's numbers, the default, refusals."""

from __future__ import annotations

import pytest
from hydra.utils import instantiate

from ssd_bench.errors import ConfigError
from tasks.rows import RowTask
from tests.runs import composed
from tests.tasks.test_tasks import make

# What YAML and `variant=` can name, with the numbers of each: shots, new tokens.
NUMBERS = {
    "gsm8k": {"knn_ssd": (5, 64), "conflayers": (5, 512), "knapspec": (0, 32768)},
    "math": {"knn_ssd": (5, 64), "knapspec": (0, 32768)},
    "cnn_dm": {"knn_ssd": (1, 64), "conflayers": (1, 512)},
    "xsum": {"knn_ssd": (0, 64), "self_ssd": (1, 512)},
    "alpaca": {"knn_ssd": (0, 64), "conflayers": (0, 512)},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_variant_has_its_papers_numbers_and_the_first_is_the_default(name: str) -> None:
    for variant, (shots, tokens) in (*NUMBERS[name].items(), (None, next(iter(NUMBERS[name].values())))):
        task = make(name, variant=variant)
        assert isinstance(task, RowTask)
        assert (task._shots.count if task._shots else 0, task.max_new_tokens) == (shots, tokens)
        assert len(task.files("plain")) == (2 if shots else 1)
    assert make(name).files("plain") == make(name, variant=None).files("plain")


@pytest.mark.parametrize(("name", "variant"), [("gsm8k", "conflayers"), ("math", "knapspec"), ("xsum", "self_ssd")])
def test_variant_without_a_prefix_reaches_the_task(name: str, variant: str) -> None:
    task = composed(f"task={name}", f"variant={variant}").task
    assert task.variant == instantiate(task).variant == variant


def test_one_number_for_all_variants() -> None:
    assert make("gsm8k", variant="conflayers", shots=2, max_new_tokens=7).max_new_tokens == 7
    assert len(make("gsm8k", variant="conflayers", shots=0).files("plain")) == 1
    assert len(make("xsum", shots=5).files("plain")) == 2


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gsm8k", {"variant": "swift"}, r"task\.variant='swift' .*knn_ssd, conflayers, knapspec"),
        ("alpaca", {"variant": "swift"}, r"task\.variant='swift' .*knn_ssd, conflayers"),
        ("alpaca", {"variant": "conflayers", "shots": 2}, r"task\.shots=2 .*0 for the variant conflayers"),
        ("gsm8k", {"variant": "knapspec", "shots": 2}, r"task\.shots=2 .*0 for the variant knapspec"),
        ("cnn_dm", {"clip_reserve": -1}, r"task\.clip_reserve=-1 .*>= 0"),
        ("math", {"shots": {"knn_ssd": -1}}, r"task\.shots=-1 .*>= 0"),
        ("cnn_dm", {"max_new_tokens": {"knn_ssd": 0}}, r"task\.max_new_tokens=0 .*>= 1"),
        ("xsum", {"shots": "five"}, r"task\.shots='five' .*an integer"),
    ],
)
def test_variants_and_numbers_that_cannot_work_are_refused(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:  # Hydra wraps what a target raises
        make(name, **changes)
    assert isinstance(caught.value.__cause__, ConfigError)
