"""One way to hand pictures, tables and files to every logger; what is special about one is known in one place only.

Numbers need no help: every logger takes them with ``log_metrics``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor

from lsgen.loggers.sinks import Artifact, Csv, RunLabels, Sink, Table, TensorBoard
from lsgen.loggers.wandb import Wandb

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Artifact", "RunLabels", "Sink", "Table", "log_figure", "log_image", "log_table", "sink_of", "sinks"]


def sink_of(logger: Logger) -> Sink:
    """What takes pictures, tables and files for a logger; one that does nothing where the logger cannot."""
    kinds = (kind for kind in (Csv, TensorBoard, Wandb) if isinstance(logger, kind.logger_class))
    return next(kinds, Sink)(logger)


def sinks(trainer: Trainer) -> list[Sink]:
    """Those of all loggers of a trainer."""
    return [sink_of(logger) for logger in trainer.loggers]


def log_image(trainer: Trainer, name: str, image: Tensor, step: int | None = None) -> None:
    """Hands a picture to every logger.

    Args:
        trainer: Whose loggers.
        name: Key of the picture, e.g. ``val/samples``.
        image: [C, H, W] in [0, 1].
        step: Where it belongs; the trainer's step by default.
    """
    for sink in sinks(trainer):
        sink.image(name, image.cpu(), _step(trainer, step))


def log_figure(trainer: Trainer, name: str, figure: Figure, step: int | None = None) -> None:
    """Hands a figure to every logger.

    Args:
        trainer: Whose loggers.
        name: Its key.
        figure: Drawn by matplotlib.
        step: Where it belongs; the trainer's step by default.
    """
    for sink in sinks(trainer):
        sink.figure(name, figure, _step(trainer, step))


def log_table(trainer: Trainer, name: str, table: Table, step: int | None = None) -> None:
    """Hands a table to every logger.

    Args:
        trainer: Whose loggers.
        name: Its key.
        table: Rows, with pictures where a logger can show them.
        step: Where it belongs; the trainer's step by default.
    """
    for sink in sinks(trainer):
        sink.table(name, table, _step(trainer, step))


def _step(trainer: Trainer, step: int | None) -> int:
    return trainer.global_step if step is None else step
