"""Layer sets of one model on one task as points of draft cost and acceptance rate: what methods chose, and the best.

    runs_dir/frontier/MODEL.TASK.json     written by `python -m ssd_bench frontier`

Draft cost c is the time of a drafted token over that of a plain step, both by the machine's latency profile. α is the
share of AR's own output tokens that a set predicts when it drafts `DRAFT_LEN` of them at a time and every token before
is right: the same tokens for every set, so that sets are compared, not the prompts and stops of their methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError
from ssd_bench.records.files import write_atomic

FOLDER = "frontier"
DRAFT_LEN = 8
LONGEST = 32
"""Tokens drafted at a time at most, where the best number is sought."""


@dataclass(frozen=True)
class Use:
    """A set in a run: `share` of the run's drafted tokens came from it."""

    run: str
    method: str
    share: float


@dataclass(frozen=True)
class Point:
    """A layer set.

    Attributes:
        skipped: its skipped sublayers, ascending.
        cost: c, of one drafted token, in plain steps.
        alpha: α, teacher-forced.
        uses: the runs that drafted with it; none for a set that only the search found.
        window: sinks and recent positions, all that its attentions read; None: all.
    """

    skipped: tuple[int, ...]
    cost: float
    alpha: float
    uses: tuple[Use, ...] = ()
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plane:
    """All points of a model and task.

    Attributes:
        search: how the frontier was found: `exhaustive`, or `beam` of some width.
        tried: sets that were scored.
        tokens: that α is a share of.
        context: mean context of the costs.
        verify: of γ = 0, 1, ... drafted tokens, the time of their verification, in plain steps.
        frontier: the sets of all tried, chosen ones included, of which none is cheaper without a lower α.
        chosen: those that runs drafted with.
    """

    model: str
    task: str
    n_layers: int
    search: str
    tried: int
    tokens: int
    context: float
    verify: tuple[float, ...]
    frontier: tuple[Point, ...]
    chosen: tuple[Point, ...]

    def speedup(self, cost: float, alpha: float) -> float:
        """TPT (KnapSpec Eq. 4, a verification taking as long as measured) over AR's, at the best draft length."""
        return max(tpt(alpha, n, cost, verify) for n, verify in enumerate(self.verify)) / 1000


def pareto(points: Iterable[Point]) -> list[Point]:
    """Those of which no other is as cheap with a higher α, or cheaper with the same, by cost; of equals the first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.alpha)):
        if not best or point.alpha > best[-1].alpha:
            best.append(point)
    return best


def path_of(runs_dir: Path, model: str, task: str) -> Path:
    """The file of a plane."""
    return runs_dir / FOLDER / f"{model}.{task}.json"


def write(runs_dir: Path, plane: Plane) -> Path:
    """Write a plane, replacing an older one."""
    path = path_of(runs_dir, plane.model, plane.task)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(asdict(plane), ensure_ascii=False).encode() + b"\n")
    return path


def read(path: Path) -> Plane:
    """Read a plane.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
        points = {name: tuple(map(_point, content.pop(name))) for name in ("frontier", "chosen")}
        return Plane(**content | points | {"verify": tuple(content["verify"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError("frontier", str(path), f"as ssd_bench.frontier writes it; it is damaged ({error})") from error


def _point(content: dict[str, Any]) -> Point:
    uses, window = tuple(Use(**use) for use in content["uses"]), content.get("window")
    named = {"skipped": tuple(content["skipped"]), "uses": uses, "window": window and tuple(window)}
    return Point(**content | named)
