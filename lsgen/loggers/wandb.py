"""Weights & Biases: all that lsgen knows of it.

A run is online where the user has logged in and the server answers, else offline; a table, picture or file that W&B
cannot take is a warning and does not end a run of lsgen.
"""

from __future__ import annotations

import functools
import netrc
import os
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only, rank_zero_warn
from torch import Tensor

from lsgen.loggers.sinks import Artifact, RunLabels, Sink, Table, picture, rendered
from lsgen.types import to_uint8

if TYPE_CHECKING:
    import wandb
    from matplotlib.figure import Figure

PROJECT = "lsgen"
LIGHTNINGS = "lightning_logs"  # what Lightning calls a project that nobody named
ANSWER = 5.0  # seconds within which the server must answer
WAITS = {"WANDB_INIT_TIMEOUT": "30", "WANDB_FINISH_TIMEOUT": "300"}  # seconds; W&B would wait for ever at the end
CallT = TypeVar("CallT", bound=Callable[..., None])

_runs: WeakKeyDictionary[WandbLogger, Any] = WeakKeyDictionary()  # those that lsgen has begun
_begun: set[str] = set()  # their ids, also of loggers that are gone


def harmless(method: CallT) -> CallT:
    """Turns whatever goes wrong with W&B into a warning."""

    @functools.wraps(method)
    def safe(self: Wandb, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            rank_zero_warn(f"W&B: {method.__name__} failed ({error}); the run goes on without", category=UserWarning)

    return safe  # type: ignore[return-value]


class Wandb(Sink):
    """Takes everything."""

    logger_class = WandbLogger

    @rank_zero_only
    def begin(self, labels: RunLabels, folder: Path) -> None:
        """Starts the run, unless this logger has one that goes on."""
        if self.logger not in _runs:
            _finish_others()
            _runs[self.logger] = run = _start(self.logger, labels, folder)
            _begun.add(run.id)

    @harmless
    def image(self, name: str, image: Tensor, step: int) -> None:
        """A panel with a slider over the steps."""
        self.logger.log_image(name, [picture(to_uint8(image).numpy())], step=step)  # W&B takes floats for 0 to 255

    @harmless
    def figure(self, name: str, figure: Figure, step: int) -> None:
        """The same."""
        self.logger.log_image(name, [rendered(figure)], step=step)

    @harmless
    def table(self, name: str, table: Table, step: int) -> None:
        """A ``wandb.Table``, pictures first."""
        import wandb

        columns: dict[Any, list[Any]]
        columns = {k: [wandb.Image(picture(image)) for image in images] for k, images in table.images.items()}
        columns |= {k: table.frame[k].tolist() for k in table.frame}
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        self.logger.log_table(name, columns=list(columns), data=rows, step=step)

    @harmless
    def used(self, artifact: Artifact) -> None:
        """An input in the lineage; the same files under the same name are the same version that made them."""
        run = self.logger.experiment
        if run.offline:  # the public call refuses, though the record can be written and synced
            run._log_artifact(_artifact(artifact), is_user_created=True, use_after_commit=True)
        else:
            run.use_artifact(_artifact(artifact))

    @harmless
    def made(self, artifact: Artifact) -> None:
        """An output in the lineage."""
        self.logger.experiment.log_artifact(_artifact(artifact))


def _artifact(artifact: Artifact) -> wandb.Artifact:
    import wandb

    made = wandb.Artifact(artifact.name, type=artifact.kind, metadata=artifact.about)
    for name, file in sorted(artifact.files.items()):
        made.add_file(str(file), name=name)
    return made


def _finish_others() -> None:
    """Ends a run of an earlier logger of this process, whose numbers would get mixed with the new one's."""
    import wandb

    if wandb.run is not None and wandb.run.id in _begun:
        wandb.finish()


def _start(logger: WandbLogger, labels: RunLabels, folder: Path) -> Any:
    """Begins the run with the user's settings and, where there are none, lsgen's."""
    for name, seconds in WAITS.items():
        os.environ.setdefault(name, seconds)
    given = logger._wandb_init  # what Lightning will hand to wandb.init; it has no public name
    given |= {key: None for key, usual in (("project", LIGHTNINGS), ("dir", ".")) if given.get(key) == usual}
    wish = given.get("mode") or ("offline" if logger._offline else os.environ.get("WANDB_MODE"))
    reason = None if wish else _why_offline()
    own = {
        "project": PROJECT,
        "dir": str(folder),
        "group": labels.group,
        "job_type": labels.command,
        "mode": wish or ("offline" if reason else "online"),
    }
    own = {key: value for key, value in own.items() if given.get(key) is None}  # the command line hands over Nones
    given |= {**own, "tags": [*(given.get("tags") or []), *labels.tags]}
    if given.get("anonymous") is None:
        given.pop("anonymous", None)  # W&B warns of it, whatever it is
    Path(given["dir"]).mkdir(parents=True, exist_ok=True)
    run = _open(logger)
    if run.offline:
        where = run.settings.sync_dir
        print(f"W&B: {reason or 'offline'}; the run stays on this disk, and `wandb sync {where}` uploads it")
    return run


def _open(logger: WandbLogger) -> Any:
    """The run; offline where the server refuses, and none at all where even that is impossible."""
    for fallback in ("offline", "disabled"):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a wandb run already in progress")  # the user's own
                return logger.experiment
        except Exception as error:
            rank_zero_warn(f"W&B did not start ({error}): going on {fallback}", category=UserWarning)
            logger._wandb_init["mode"] = fallback
    return logger.experiment


def _why_offline() -> str | None:
    """What keeps a run from being online, None if nothing does."""
    import wandb

    url = str(wandb.setup().settings.base_url)
    if not _logged_in(urlsplit(url).hostname or url):
        return "not logged in (`wandb login`)"
    if not _answers(url):
        return f"{url} does not answer"
    return None


def _logged_in(host: str) -> bool:
    """Whether W&B will find a key without asking for one, which would stop a run that nobody watches."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _answers(url: str) -> bool:
    """Whether anything at all comes back, also through a proxy."""
    try:
        urllib.request.urlopen(url, timeout=ANSWER).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True
