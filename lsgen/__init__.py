"""lsgen tests image classifiers by searching a generative model's latent space for inputs on which they fail.

Heavy packages are imported where they are used: ``import lsgen`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lsgen.suite import Suite, load_suite
    from lsgen.trainer import Trainer

__version__ = "0.1.0"
__all__ = ["Suite", "Trainer", "__version__", "load_suite"]

_HOMES = {"Suite": "lsgen.suite", "load_suite": "lsgen.suite", "Trainer": "lsgen.trainer"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lsgen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
