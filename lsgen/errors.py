"""The one exception that means "the user's input is wrong": one sentence, exit status 2, no traceback."""


class InputError(ValueError):
    """Something the user gave is wrong; the message names it and says what was expected."""
