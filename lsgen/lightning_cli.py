"""``fit``, ``validate``, ``test`` and ``search`` as subcommands of LightningCLI."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.model_helpers import is_overridden

# imported so that configurations can name their classes in short
import lsgen.data
import lsgen.generators
import lsgen.objectives
import lsgen.search
import lsgen.surprise
import lsgen.suts
from lsgen import checkpoints
from lsgen.arguments import check_values, spell_nulls
from lsgen.errors import InputError
from lsgen.messages import chain
from lsgen.report.tables import not_counted, print_suites
from lsgen.trainer import Trainer

COMMANDS = {  # what each does, in place of Lightning's long texts
    "fit": "Trains a generator or a SUT; best.ckpt and last.ckpt are left in trainer.default_root_dir.",
    "validate": "Measures a trained model on the validation data: give --ckpt_path.",
    "test": "Measures a trained model on the test data: give --ckpt_path.",
    "search": "Searches for inputs on which the SUT fails, and writes them as a suite.",
}

# what Lightning says of every run here and nobody can act on
NOISE = (
    ".*LightningCLI's args parameter is intended",
    ".*Checkpoint directory .* exists and is not empty",
    ".*Experiment logs directory .* exists and is not empty",
    ".*LeafSpec.* is deprecated",
    ".*does not have many workers",
    ".*predict returned None if it was on purpose",
    ".*The number of training batches .* is smaller than the logging interval",
)


def quieten() -> None:
    """Keeps routine remarks of Lightning off the screen; its warnings about problems stay."""
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: "Tip:" not in record.getMessage() and "TPU available" not in record.getMessage()
    )


class SaveConfig(SaveConfigCallback):
    """Keeps the resolved configuration of a ``fit`` beside its checkpoints; a search keeps its own in the suite."""

    def setup(self, trainer: LightningTrainer, pl_module: LightningModule, stage: str) -> None:
        """Waits: what does not fit together is refused first, and must not describe the checkpoints of another run."""

    def on_fit_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Writes ``config.yaml`` into ``default_root_dir``, over that of an earlier run."""
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, folder / "config.yaml", skip_unset=False, overwrite=True, multifile=False)


class LsgenCLI(LightningCLI):
    """Lightning's command line with ``search``."""

    trainer: Trainer
    ready = False  # whether all objects are built: what is wrong with a setting shows before

    def __init__(self, args: list[str] | None = None) -> None:
        quieten()
        given = sys.argv[1:] if args is None else args
        _check_files(given)
        if (spelt := spell_nulls(given)) != given:
            args = spelt
        quiet: dict[str, Any] = {"exit_on_error": False}
        usage = "lsgen {} --config FILE [--KEY VALUE ...]"
        commands = {
            name: {"usage": usage.format(name), "description": what, **quiet} for name, what in COMMANDS.items()
        }
        try:
            super().__init__(
                LightningModule,
                LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                trainer_class=Trainer,
                save_config_callback=SaveConfig,
                seed_everything_default=0,
                parser_kwargs={"prog": "lsgen", **quiet, **commands},
                auto_configure_optimizers=False,
                args=args,
            )
        except (ValueError, TypeError) as error:
            if self.ready:
                raise
            raise _refusal(error) from error

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The methods of the Trainer that can be called, with the arguments that are not for the command line."""
        common = {"model", "dataloaders", "datamodule", "verbose", "weights_only"}
        return {
            "fit": common | {"train_dataloaders", "val_dataloaders"},
            "validate": common,
            "test": common,
            "search": {"model", "datamodule"},
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Help for people: where to begin."""
        parser.epilog = (
            "Shipped configurations: configs/<dataset>/*.yaml. All settings of one: --config FILE --print_config. "
            "Settings of a class: --model.help SearchTask, --data.help ImageData."
        )

    def _parse_ckpt_path(self) -> None:
        """Looks at ``--ckpt_path`` early; Lightning would merge hyperparameters, which lsgen's checkpoints lack."""
        path = self.config[self.config.subcommand].get("ckpt_path")
        if path not in (None, "best", "last", "hpc"):
            checkpoints.read(path)

    def before_instantiate_classes(self) -> None:
        """Refuses values that would end in a traceback."""
        check_values(self.config[self.subcommand].as_dict())

    def after_instantiate_classes(self) -> None:
        """Refuses what cannot be trained or measured, and readies a model for training."""
        command = self.subcommand
        if command != "search" and isinstance(self.model, lsgen.search.SearchTask):
            raise InputError(f"`lsgen {command}` takes a generator or a SUT; a SearchTask runs with `lsgen search`")
        settings = self.config[command]
        fresh = not settings.model.class_path.endswith(".pretrained") and is_overridden("training_step", self.model)
        if command in ("validate", "test") and fresh and settings.ckpt_path is None:
            raise InputError(f"`lsgen {command}` would measure an untrained model: give --ckpt_path, its best.ckpt")
        if settings.get("ckpt_path") not in (None, "best", "last", "hpc"):
            checkpoints.check_class(settings.ckpt_path, self.model, resume=command == "fit")
        if command == "fit":
            self.model.train()  # `pretrained` gives a model in eval mode, and Lightning would leave it there
        self.ready = True

    def before_fit(self) -> None:
        """Says that an earlier training's checkpoint will go, while it is still there."""
        folder = getattr(self.trainer.checkpoint_callback, "dirpath", None)
        best = Path(folder) / "best.ckpt" if folder else None
        if best and best.is_file() and self.config["fit"].ckpt_path is None and self.trainer.is_global_zero:
            print(f"{best} will be replaced after the first epoch: to keep it, stop now (Ctrl-C) and move it away")

    def after_fit(self) -> None:
        """Says where the best state lies; a training that was told to end is not done."""
        best = self.trainer.checkpoint_callback
        if isinstance(best, ModelCheckpoint) and best.best_model_path and self.trainer.is_global_zero:
            print(f"best state ({best.monitor} {float(best.best_model_score or 0):.4g}): {best.best_model_path}")
        if self.trainer.received_sigterm:
            sys.exit(1)

    def before_search(self) -> None:
        """Hands name and resolved configuration over to the suite."""
        config = self.config["search"]
        files = config.get("config") or []
        self.trainer.search_name = Path(str(files[-1])).stem if files else None
        parser = self._parser("search")
        self.trainer.search_config = parser.dump(config, skip_unset=False)

    def after_search(self) -> None:
        """Shows the headline numbers, and how to go on."""
        suite = self.trainer.suite
        if self.trainer.is_global_zero and suite is not None:
            print_suites({type(self.model.searcher).__name__: suite})
            for line in not_counted(suite):
                print(line)
            if not suite.finished:
                print("to go on: the same command again")
            elif suite.summary["failed"]:
                folder, page = shlex.quote(str(suite.path)), shlex.quote(f"{suite.path}.html")
                print(f"to see its failures: lsgen report {folder} --out {page}")


def _refusal(error: Exception) -> InputError:
    """What a class said of a setting, without what the parser wraps around it."""
    if isinstance(error, InputError):
        return error
    said = [cause for cause in chain(error) if isinstance(cause, InputError)]
    if said:
        return said[-1]
    inner = re.search(r"Errors:\n\s*- (.*(?<=:)\n.*|.*)", str(error))  # a line that ends in a colon goes on in the next
    return InputError(" ".join((inner[1] if inner else str(error)).split())[:300])


def _check_files(args: list[str]) -> None:
    """Refuses configurations that cannot be read, by name: the parser does not say which of several it was.

    Raises:
        InputError: One of them is no YAML with settings.
    """
    import yaml

    named = [b for a, b in pairwise(args) if a == "--config"]
    named += [a.partition("=")[2] for a in args if a.startswith("--config=")]
    for file in filter(Path.is_file, map(Path, named)):
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
        if not isinstance(content, dict):
            raise InputError(f"{file} holds no settings; configs/mnist5k/search/pgd.yaml shows how they are written")


_ = (lsgen.data, lsgen.generators, lsgen.objectives, lsgen.search, lsgen.surprise, lsgen.suts)
