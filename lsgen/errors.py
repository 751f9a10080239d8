"""What can go wrong for reasons that have a name."""


class InputError(ValueError):
    """What the user gave is wrong; the message says which value and what was expected. Exit status 2."""


class Diverged(RuntimeError):
    """A training whose loss is no number any more; the message says when. Exit status 1."""
