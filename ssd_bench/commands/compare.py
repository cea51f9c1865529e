"""Compare two runs, folders of runs or packs over the prompts that both have.

`python -m ssd_bench compare A B [margin=0.01] [on=decode] [fail_if=slower] [out=FILE.json]`
    prints for each quantity the numbers of A and B, B over A with its 95 % interval, and a verdict on B: faster,
    slower (higher, lower), equivalent or inconclusive

  a=A b=B            the same as A B: a run, a folder of runs, or a pack (.zip)
  method_a=NAME      of A only the runs of this method; b=A if only A is named
  method_b=NAME      of B only the runs of this method
  margin=0.01        margin of equivalence
  on=decode          quantity that decides: decode, end_to_end, tpot, speedup, speedup_e2e (over AR of the same run),
                     modelled, M, alpha, hazard, score, ar_decode
  fail_if=WORDS      exit with code 1 if the verdict is one of these: slower, faster (lower, higher), equivalent,
                     inconclusive, different; several are separated by commas
  variation=SD|DIR   run-to-run variation of a speed: its standard deviation, or a folder of runs in which it was
                     measured; default: measured on repeated runs of A and of B, else assumed
  out=FILE           the comparison as .json or .csv

docs/compare.md has the rules and an example for a Makefile.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench.compare.comparison import COMPARED, compare
from ssd_bench.compare.pairing import RecordSet
from ssd_bench.compare.text import check_out, fail_words, fails, terminal_text, write
from ssd_bench.compare.variation import read_variation
from ssd_bench.console import options, tool
from ssd_bench.errors import NOT_GIVEN, ConfigError
from ssd_bench.paths import display_path, local_path

SIDES = ("a", "b")
OPTIONS = (*SIDES, "method_a", "method_b", "margin", "on", "fail_if", "variation", "out")


def _named(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the names of the first two, which may be left out."""
    bare = [argument for argument in arguments if "=" not in argument]
    names = iter(SIDES)
    if len(bare) > len(SIDES):
        raise ConfigError("option", bare[len(SIDES)], "two paths, A and B, and options NAME=VALUE")
    return [argument if "=" in argument else f"{next(names)}={argument}" for argument in arguments]


def _margin(text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = -1.0
    if not 0 < margin < 1:
        raise ConfigError("margin", text, "a number between 0 and 1, such as 0.01 for 1 %")
    return margin


@tool(__doc__)
def main(arguments: Sequence[str]) -> int:
    """Print the comparison; return 1 if the verdict is one of `fail_if`, else 0."""
    values = options(_named(arguments), OPTIONS)
    by_method = "method_a" in values or "method_b" in values
    if by_method:
        values.setdefault("b", values.get("a", ""))
    for name in SIDES:
        if not values.get(name):
            expected = "two paths: compare A B; for two methods of A: A method_a=NAME method_b=NAME"
            raise ConfigError(name, NOT_GIVEN, expected)
    margin, on = _margin(values.get("margin", "0.01")), values.get("on", "decode")
    if on not in COMPARED:
        raise ConfigError("on", on, f"one of {', '.join(COMPARED)}")
    words = fail_words(values.get("fail_if"), on)
    out = local_path("out", values["out"]) if "out" in values else None
    if out is not None:
        check_out(out)
    a, b = (RecordSet.read(name, values[name], values.get(f"method_{name}")) for name in SIDES)
    variation = read_variation(values.get("variation"), [a.folder, b.folder])
    comparison = compare(a, b, variation, margin, by_method)
    print(f"a: {display_path(a.folder)}\nb: {display_path(b.folder)}\n")
    print(terminal_text(comparison, margin, on))
    if out is not None:
        write(comparison, out, {"a": str(a.folder), "b": str(b.folder), "margin": margin, "on": on})
        print(display_path(out))
    failed = fails(comparison.headline(on), words)
    if failed:
        print(f"\nfail_if={values['fail_if']}: {on} of b is {comparison.headline(on).verdict}")
    return int(failed)
