"""Lightning's Trainer with two additions: ``search``, and checkpoints and logs in one folder of their own."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy

from lsgen.epochs import EpochLines
from lsgen.errors import InputError
from lsgen.loggers import log_figure, sinks
from lsgen.memory import keep_freed_memory
from lsgen.search.callbacks import SearchCallback, SearchProgress, SuiteWriter, check_task
from lsgen.search.preflight import Preflight
from lsgen.search.task import SearchTask
from lsgen.search.tracking import RunInfo, SearchLogging, run_labels
from lsgen.suite import Suite

LONGEST_BLOCK = timedelta(days=7)


class Trainer(pl.Trainer):
    """Lightning's Trainer, which can also search.

    Unless told otherwise, ``fit`` keeps ``best.ckpt`` (lowest ``val/loss``) and ``last.ckpt`` in ``default_root_dir``,
    and numbers go to ``default_root_dir/logs`` as CSV. Every logger learns of configuration, code, data and hardware.
    All arguments are Lightning's.
    """

    callbacks: list[Callback]
    search_name: str | None = None  # what a suite's default folder is called
    search_config: str | None = None  # the resolved configuration, for the suite
    suite: Suite | None = None  # what the last search wrote

    def __init__(self, **kwargs: Any) -> None:
        root = Path(kwargs.get("default_root_dir") or "runs")
        kwargs["default_root_dir"] = root
        callbacks = kwargs.get("callbacks") or []
        callbacks = list(callbacks) if isinstance(callbacks, list) else [callbacks]
        bare = kwargs.get("barebones")  # Lightning refuses loggers and checkpoints then
        wanted = kwargs.get("enable_checkpointing") is not False and not kwargs.get("fast_dev_run") and not bare
        if wanted and not any(isinstance(c, Checkpoint) for c in callbacks):
            # two, because save_last=True writes only when the best improves, and resuming would lose epochs
            callbacks += [
                ModelCheckpoint(dirpath=root, filename="best", monitor="val/loss", enable_version_counter=False),
                ModelCheckpoint(dirpath=root, filename="last", enable_version_counter=False),
            ]
        if kwargs.get("logger") in (None, True) and not bare:
            kwargs["logger"] = CSVLogger(save_dir=root, name="logs")
        super().__init__(**{**kwargs, "callbacks": [*callbacks, RunInfo(), EpochLines()]})

    @functools.wraps(pl.Trainer.fit)
    def fit(self, model: LightningModule, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Trains; see Lightning."""
        self._begin("fit", model, *args, *kwargs.values())
        super().fit(model, *args, **kwargs)

    @functools.wraps(pl.Trainer.validate)
    def validate(self, model: LightningModule | None = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Measures on validation data; see Lightning."""
        self._begin("validate", model, *args, *kwargs.values())
        return super().validate(model, *args, **kwargs)

    @functools.wraps(pl.Trainer.test)
    def test(self, model: LightningModule | None = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Measures on test data; see Lightning."""
        self._begin("test", model, *args, *kwargs.values())
        return super().test(model, *args, **kwargs)

    def search(
        self, model: LightningModule, datamodule: LightningDataModule | None = None, out: str | None = None
    ) -> Suite:
        """Searches for inputs on which the SUT fails, and writes them as a suite.

        Running the same search again goes on where it stopped.

        Args:
            model: A SearchTask.
            datamodule: The data set that generator and SUT were trained on.
            out: Folder of the suite; runs/<config name>-<8 hex digits> by default.
        """
        check_task(model)
        if isinstance(self.strategy, DDPStrategy):
            self._settle(self.strategy)
        self._begin("search", model, datamodule)
        self.predict_loop.inference_mode = False  # gradients to the latent are needed
        writer = SuiteWriter(out, self.search_name, self.search_config)
        own = self.callbacks
        others = [c for c in own if not isinstance(c, ProgressBar)]
        bar = [SearchProgress(getattr(c, "refresh_rate", 1)) for c in own if isinstance(c, ProgressBar)]
        logging = SearchLogging(writer)
        self.callbacks = [*others, writer, logging, SuiteFigures(logging), Preflight(writer), *bar]
        try:
            self.predict(model, datamodule=datamodule, return_predictions=False)
        except Exception:
            writer.discard(alone=self.world_size == 1)
            raise
        finally:
            self.callbacks = own
            writer.close()
        self.suite = writer.suite
        return writer.suite

    @staticmethod
    def _settle(strategy: DDPStrategy) -> None:
        """Lets processes that are done wait for the others, however long their last blocks take."""
        if strategy._start_method != "popen":
            raise InputError("a search on several processes needs strategy: ddp, whose processes start on their own")
        strategy._timeout = max(strategy._timeout or LONGEST_BLOCK, LONGEST_BLOCK)  # no setter; half an hour by default

    def _begin(self, command: str, model: LightningModule | None, *given: Any) -> None:
        """Tells loggers what the run is about before Lightning opens them, and keeps memory from going to and fro."""
        keep_freed_memory()
        data = next((value for value in given if isinstance(value, LightningDataModule)), None)
        if model is not None:
            for sink in sinks(self):
                sink.begin(run_labels(command, model, data), Path(self.default_root_dir))


class SuiteFigures(SearchCallback):
    """Hands figures of the report to every logger when a search ends.

    Args:
        logging: Who knows the suite and the step.
    """

    def __init__(self, logging: SearchLogging) -> None:
        self.logging = logging

    def on_search_end(self, trainer: pl.Trainer, task: SearchTask) -> None:
        """Bars of each class, escape rates and, where the suite was clustered, its regions."""
        suite = self.logging.writer.suite
        if not trainer.is_global_zero or not trainer.loggers or not suite.blocks:
            return
        from lsgen.report import figures
        from lsgen.report.entry import open_entries

        entries = open_entries([suite.path])
        drawings = {
            "per_class": figures.per_class(entries),
            "escape_rate": figures.escapes(entries[0]),
            "regions": figures.region_map(entries[0]),
        }
        for name, drawing in drawings.items():
            if drawing is not None:
                log_figure(trainer, name, drawing.figure, self.logging.step)


# the command line reads the signature, and with it which settings there are and what they mean
functools.update_wrapper(Trainer.__init__, pl.Trainer.__init__)
