"""Find contradictions between the papers' own numbers.

`python -m ssd_bench audit [out=DIR]`
`python -m ssd_bench audit replications`

Prints the disagreements by paper; with `out` also writes them as `audit.md` and every comparison as `audit.csv`.
`replications` prints what others got when they ran a published method (`ssd_bench/papers/replications.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench import tables
from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import audit, register
from ssd_bench.paths import local_path, write_atomic


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Run the audit."""
    if [*arguments] == ["replications"]:
        print(register.terminal_text(register.read_reports()))
        return
    folder = options(arguments, ("out",)).get("out")
    out = local_path("out", folder) if folder else None
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        frame = audit.audit()
        print(audit.terminal_text(frame))
        if out is None:
            return
        for name, content in (("audit.md", audit.markdown_text(frame)), ("audit.csv", tables.csv(frame))):
            write_atomic(out / name, content.encode())
            print(out / name)
    except OSError as error:
        raise ConfigError("out", str(out), f"a directory that can be written ({error})") from error
