"""What can go wrong for reasons that have a name."""

import re


class InputError(ValueError):
    """What the user gave is wrong; the message says which value and what was expected. Exit status 2."""


class Diverged(RuntimeError):
    """A training whose loss is no number any more; the message says when. Exit status 1."""


def out_of_memory(error: BaseException) -> bool:
    """Whether that is what an error says; torch says it in several ways, on a CPU by a plain RuntimeError."""
    return isinstance(error, MemoryError) or bool(re.search("can't allocate memory|out of memory", str(error)))
