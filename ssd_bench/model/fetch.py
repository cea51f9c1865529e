"""Causes and remedies of failed downloads from the Hugging Face hub."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Literal

from ssd_bench.errors import one_line

Kind = Literal["model", "dataset"]


def failure(error: BaseException, kind: Kind, name: str, revision: str | None = None) -> str:
    """Return the cause of a failed download and its remedy, in one line.

    The hub's clients wrap errors of other libraries: the most specific cause is taken.
    """
    from huggingface_hub import constants, errors

    chain = list(_causes(error))
    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
    status = next((s for e in chain if (s := getattr(getattr(e, "response", None), "status_code", None))), None)

    def has(*types: type[BaseException]) -> bool:
        return any(isinstance(e, types) for e in chain)

    if has(errors.GatedRepoError):
        if status == 403:
            return f"it is gated, and this account has no access yet: request it on {page}, then run the same command"
        return f"it is gated: accept its licence on {page}, then run `hf auth login`"
    if any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in chain):
        return f"the disk of {constants.HF_HUB_CACHE} is full: free some space, or let HF_HOME name a folder elsewhere"
    if has(errors.RevisionNotFoundError):
        return f"the hub has no revision {revision or 'main'} of it: {page}/commits/main lists them"
    if has(errors.RepositoryNotFoundError):
        return f"the hub has no such {kind}, or it is private: check the id on {page}, or run `hf auth login`"
    if has(errors.OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, and {constants.HF_HUB_CACHE} lacks it: {command(kind, name, revision)}"
    if status == 429:
        return (
            "the hub limits how often it may be asked (HTTP 429): wait some minutes; `hf auth login` raises the limit"
        )
    if status is not None and status >= 500:
        return f"the hub has a fault of its own (HTTP {status}): run the same command later"
    if _disconnected(chain):
        cause = reason(chain[-1])
        return f"the hub cannot be reached, or the connection broke off ({cause}): run the same command again"
    return reason(error)


def command(kind: Kind, name: str, revision: str | None = None) -> str:
    """Return advice on how to fill the hub's cache by hand, on a machine with a network."""
    options = ("" if kind == "model" else " --repo-type dataset") + (f" --revision {revision}" if revision else "")
    return f"with a network `hf download {name}{options}` gets it"


def reason(error: BaseException) -> str:
    return one_line(error).removesuffix(": ")[:300]


def _causes(error: BaseException) -> Iterator[BaseException]:
    step: BaseException | None = error
    seen: set[int] = set()
    while step is not None and id(step) not in seen:
        yield step
        seen.add(id(step))
        step = step.__cause__ or step.__context__


def _disconnected(chain: list[BaseException]) -> bool:
    """Return whether the connection failed, by the errors' names: the client may use any HTTP library."""
    names = ("ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError", "TransportError")
    by_name = any(kind.__name__ in names for e in chain for kind in type(e).__mro__)
    return by_name or any(isinstance(e, ConnectionError | TimeoutError) for e in chain)
