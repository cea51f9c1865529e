"""Program that runs models' queries; `SqlExecution` runs it in a process of its own, which can be killed.

Its argument is the address space in MiB. It prints a line `true` when it is ready, and then a line for each line of
JSON on stdin: for [QUERY, SCHEMA] whether the query can be executed, for [QUERY, SCHEMA, ANSWER] whether the answer
agrees.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence

from tasks.scoring.sql.databases import Case, cases, has_new_literals
from tasks.scoring.sql.engine import equal_results, result
from tasks.scoring.sql.text import is_ordered


def main() -> None:
    """Answer requests until stdin ends."""
    memory, hard = int(sys.argv[1]) << 20, resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    print("true", flush=True)
    for line in sys.stdin.buffer:
        query, schema, *answer = json.loads(line)
        reply = agrees(query, schema, *answer) if answer else bool(cases(query, schema))
        print(json.dumps(reply), flush=True)


def agrees(query: str, schema: str, answer: str) -> bool:
    """Return whether answer and query have equal results on the query's databases and on those with new literals."""
    if not _agree(answer, query, cases(query, schema)):
        return False
    return not has_new_literals(query, schema, answer) or _agree(answer, query, cases(query, schema, answer))


def _agree(answer: str, query: str, databases: Sequence[Case]) -> bool:
    return all(equal_results(result(case.image, answer), case.expected, is_ordered(query)) for case in databases)


if __name__ == "__main__":
    main()
