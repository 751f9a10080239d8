"""From an exception to the sentence that a user needs."""

from __future__ import annotations

import re
from argparse import ArgumentError

from lsgen.errors import InputError


def explain(error: BaseException) -> tuple[int, str | None]:
    """Exit status, and a sentence where the cause is known (else None: show the traceback)."""
    causes = _chain(error)
    for cause in causes:
        if isinstance(cause, InputError):
            return 2, str(cause)
    for cause in causes:
        if isinstance(cause, ArgumentError):
            return 2, _innermost(str(cause))
    if type(error).__name__ == "MisconfigurationException":
        return 2, str(error)
    if isinstance(error, OSError) and error.strerror:
        return 1, error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return 1, None


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _innermost(text: str) -> str:
    return re.sub(r"\s+", " ", text)
