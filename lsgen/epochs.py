"""What a training writes where nobody sees a bar, as in a log file or a CI."""

from __future__ import annotations

import time
from typing import Any

import rich
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


class EpochLines(Callback):
    """One line an epoch, in place of Lightning's bar, of which only the last state reaches a file."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Looks where the output goes."""
        console = rich.get_console()
        seen = console.is_terminal or console.is_jupyter
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        bar = any(isinstance(c, RichProgressBar) and c.is_enabled for c in callbacks)
        self.wanted = stage == "fit" and trainer.is_global_zero and bar and not seen

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._began, self._validated = time.monotonic(), False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes that there are new numbers; not every epoch has some."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says how far it is, how long the epoch took, validation included, and what the bar would show."""
        if not self.wanted:
            return
        numbers = {k: v for k, v in trainer.progress_bar_metrics.items() if k != "v_num"}
        if "val/loss" in trainer.callback_metrics:
            numbers.setdefault("val/loss", float(trainer.callback_metrics["val/loss"]))
        if not self._validated:
            numbers = {k: v for k, v in numbers.items() if not k.startswith("val/")}
        of = f" of {trainer.max_epochs}" if trainer.max_epochs not in (None, -1) else ""
        shown = ", ".join(f"{name} {value:.4g}" for name, value in sorted(numbers.items()))
        line = f"epoch {trainer.current_epoch + 1}{of}, {time.monotonic() - self._began:.0f} s"
        print(f"{line}: {shown}" if shown else line, flush=True)
