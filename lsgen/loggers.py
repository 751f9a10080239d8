"""The one place that knows how each logger takes a picture."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from torch import Tensor
from torchvision.utils import save_image


def log_image(trainer: Trainer, name: str, image: Tensor) -> None:
    """Hands a picture to every logger; those without pictures get a PNG beside their numbers.

    Args:
        trainer: Whose loggers.
        name: Key of the picture, e.g. ``val/samples``.
        image: [C, H, W] in [0, 1].
    """
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.log_image(name, [image.cpu()], step=trainer.global_step)
        elif isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, image.cpu(), trainer.global_step)
        elif isinstance(logger, CSVLogger):
            file = Path(logger.log_dir) / "images" / f"{name.replace('/', '_')}_{trainer.global_step:06d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            save_image(image, file)
