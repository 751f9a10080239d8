"""How loggers take what is more than a number."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from torch import Tensor
from torchvision.utils import save_image

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from PIL import Image

DPI = 130


@dataclass(frozen=True)
class Table:
    """Rows of plain values, and columns of pictures for loggers that can show them.

    Attributes:
        frame: The plain columns.
        images: uint8 [N, C, H, W] each, row by row those of the frame.
    """

    frame: pd.DataFrame
    images: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Artifact:
    """Files that a run has made or used.

    Attributes:
        name: The same for later versions of the same thing.
        kind: ``model``, ``suite`` or ``report``.
        files: Where each lies, by its name in the artifact.
        about: Plain data.
    """

    name: str
    kind: str
    files: dict[str, Path]
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunLabels:
    """What a run is about, in words that dashboards can sort by.

    Attributes:
        command: ``fit``, ``search``, …
        data: Name of the data set.
        model: Class that is trained, or class of the generator that is searched.
        method: Class of the searcher, none in a training.
    """

    command: str
    data: str | None = None
    model: str | None = None
    method: str | None = None

    @property
    def tags(self) -> list[str]:
        """Data set, generator or other model, and method.

        Example:
            >>> RunLabels("search", "mnist", "CVAE", "LatentPGD").tags
            ['mnist', 'CVAE', 'LatentPGD']
        """
        return [label for label in (self.data, self.model, self.method) if label]

    @property
    def group(self) -> str:
        """Runs of the same group differ in seed and settings only; also a safe name for artifacts.

        Example:
            >>> RunLabels("fit", "my data", "CVAE").group
            'my-data-CVAE'
        """
        return re.sub(r"[^\w.-]+", "-", "-".join(self.tags)) or self.command


class Sink:
    """A logger that takes numbers only."""

    logger_class: ClassVar[type[Any]] = Logger

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def begin(self, labels: RunLabels, folder: Path) -> None:
        """Before anything is logged: what the run is about, and where its files may go."""

    def image(self, name: str, image: Tensor, step: int) -> None:
        """A picture, [C, H, W] in [0, 1]."""

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """A figure."""

    def table(self, name: str, table: Table, step: int) -> None:
        """A table."""

    def used(self, artifact: Artifact) -> None:
        """Files that the run starts from."""

    def made(self, artifact: Artifact) -> None:
        """Files that the run has made."""


class Csv(Sink):
    """Pictures and tables as files beside ``metrics.csv``."""

    logger_class = CSVLogger

    def image(self, name: str, image: Tensor, step: int) -> None:
        """``images/NAME_STEP.png``."""
        save_image(image, self._file("images", name, f"_{step:06d}.png"))

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """``images/NAME_STEP.png``."""
        figure.savefig(self._file("images", name, f"_{step:06d}.png"), dpi=DPI)

    def table(self, name: str, table: Table, step: int) -> None:
        """``tables/NAME.csv``; pictures stay where they are."""
        table.frame.to_csv(self._file("tables", name, ".csv"), index=False)

    def _file(self, folder: str, name: str, ending: str) -> Path:
        file = Path(self.logger.log_dir) / folder / (name.replace("/", "_") + ending)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file


class TensorBoard(Sink):
    """Pictures as pictures, tables as text."""

    logger_class = TensorBoardLogger

    def image(self, name: str, image: Tensor, step: int) -> None:
        """Under IMAGES."""
        self.logger.experiment.add_image(name, image, step)

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """Under IMAGES."""
        self.logger.experiment.add_figure(name, figure, step, close=False)

    def table(self, name: str, table: Table, step: int) -> None:
        """Under TEXT, set in columns."""
        lines = table.frame.to_string(index=False).splitlines()
        self.logger.experiment.add_text(name, "\n".join(f"    {line}" for line in lines), step)


def picture(image: np.ndarray) -> Image.Image:
    """A stored image, uint8 [C, H, W], as a picture."""
    from PIL import Image

    return Image.fromarray(image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0))


def rendered(figure: Figure) -> Image.Image:
    """A figure as a picture."""
    import io

    from PIL import Image

    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return Image.open(file)
