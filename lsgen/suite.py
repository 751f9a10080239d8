"""Suites: what a search leaves on disk, readable without lsgen (Parquet, safetensors, JSON, YAML).

A suite grows block by block. Each block is a pair of files, written under a temporary name, synced and then renamed,
so that a killed search leaves whole blocks only; a block counts when both its files can be read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lsgen.errors import InputError
from lsgen.files import replacing

if TYPE_CHECKING:
    import pandas as pd

    from lsgen.search.cases import Cases

FORMAT_VERSION = 1
LOCK = ".lock"  # left where it is: without it, two processes could lock two files of one name
WRONG_PLACE = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.ELOOP}
WRONG_PLACE |= {errno.ENAMETOOLONG}
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # said by some network file systems
SECONDS = b"lsgen.seconds"  # Parquet metadata of a part: time is no column, so that equal suites are equal files

_INT = ("id", "seed_id", "source_index", "label", "target", "other_index", "other_label", "seed_predicted")
_FLOAT = ("latent_l1", "latent_l2", "latent_linf", "pixel_l2", "pixel_linf", "mse", "ssim", "boundary_gap")
SCHEMA = pa.schema(
    [(name, pa.int64()) for name in _INT]
    + [
        ("seed_p_true", pa.float32()),
        ("viable", pa.bool_()),
        ("predicted", pa.int64()),
        ("p_true", pa.float32()),
        ("p_predicted", pa.float32()),
        ("failed", pa.bool_()),
        ("success", pa.bool_()),
        ("iterations", pa.int64()),
        ("queries", pa.int64()),
        ("backward_queries", pa.int64()),
        ("retired", pa.bool_()),
    ]
    + [(name, pa.float32()) for name in _FLOAT]
    + [("valid", pa.bool_()), ("preserved", pa.bool_())]
)
RIGHT = 0.6  # share of real test images that a SUT reads rightly, below which something is wrong with how it is asked
READABLE = 0.9  # share of a generator's plain images that the SUT must read for its failures to mean something
MANIFEST = {"format_version": int, "finished": bool, "identity": str, "blocks": int, "num_classes": int}
RESTORED = "the same `lsgen search` restores it"
ARRAYS = ("seed_latent", "latent", "seed_image", "image", "logits")


class Suite:
    """A suite on disk, finished or not.

    Args:
        path: Its folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._failures: dict[int, int] = {}  # of blocks that were counted: a whole one never changes

    def __repr__(self) -> str:
        return f"Suite({str(self.path)!r})"

    # --- reading ---------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """What made the suite, and whether it is finished."""
        content = _read_json(self.path / "manifest.json")
        known = content if isinstance(content, dict) else {}
        if not all(isinstance(known.get(key), kind) for key, kind in MANIFEST.items()):
            raise InputError(f"{self.path / 'manifest.json'} is not the manifest of a suite")
        return content

    @property
    def finished(self) -> bool:
        """Whether all its blocks are there and joined."""
        return bool(self.manifest["finished"])

    @cached_property
    def blocks(self) -> list[int]:
        """Numbers of the blocks that are whole, in order."""
        return [n for n in range(self.manifest["blocks"]) if self._is_whole(n)]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a case, in block order; missing values are NA."""
        if not self.finished:
            return _to_pandas(pa.concat_tables([SCHEMA.empty_table(), *(self._part(n) for n in self.blocks)]))
        self._check_whole()
        joined = _read_table(self.path / "cases.parquet")
        if joined is None:
            raise InputError(f"{self.path}: cases.parquet is missing or damaged; {RESTORED}")
        return _to_pandas(joined)

    @property
    def class_names(self) -> list[str] | None:
        """One for each class; None where the suite does not know them all."""
        manifest = self.manifest
        names = (manifest.get("data") or {}).get("class_names") or []
        if len(names) != manifest["num_classes"]:
            return None
        return [str(name).encode("utf-8", errors="replace").decode("utf-8") for name in names]  # no half characters

    @property
    def doubt(self) -> str | None:
        """Why the failures may not be the SUT's, by the look before the search, and what to do; None: no reason."""
        look = self.manifest.get("preflight") or {}
        right, readable = look.get("accuracy"), look.get("readable")
        if right is not None and right < RIGHT:
            return (
                f"the SUT reads only {right:.1%} of {look['test_images']:,} real test images rightly, so failures may "
                f"have been there before the search. If you know it to be better, it is not given what it was trained "
                f"on: look at mean, std, image_size, input_size, the order of the classes and whether it wants crops"
            )
        n = look.get("readable_images") or 1000
        if readable is None or readable + 2 * math.sqrt(readable * (1 - readable) / n) >= READABLE:
            return None
        return (
            f"the SUT reads only {readable:.1%} of the generator's {look['readable_of']} as intended: what a search "
            f"finds may be the generator's fault and not the SUT's. Look at the seeds: where you cannot read them "
            f"either, train the generator longer, or lower the seeds' scale"
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics; of the blocks so far where the suite is unfinished."""
        if not self.finished:
            return self._summarise(self.table)
        content = self._stored_summary()
        if content is None:
            raise InputError(f"{self.path}: summary.json is missing or damaged; {RESTORED}")
        return content

    @property
    def failures(self) -> np.ndarray:
        """Rows of the failures that count, those of viable seeds, ascending, [M]."""
        return np.flatnonzero((self.table["failed"] & self.table["viable"]).to_numpy(bool))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = next(self.pieces("image", np.empty(0, int))).shape[1:]
        return channels, height, width

    @property
    def images(self) -> np.ndarray:
        """Found images, uint8 [N, C, H, W], row by row those of :attr:`table`."""
        return self.array("image")

    @property
    def latents(self) -> np.ndarray:
        """Found latents, float32 [N, *L]."""
        return self.array("latent")

    def array(self, name: str) -> np.ndarray:
        """Any of the arrays ``seed_latent``, ``latent``, ``seed_image``, ``image``, ``logits``."""
        return np.concatenate(list(self.pieces(name)))

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Some rows [M], in any order, of one of the arrays; the rest is not kept in memory."""
        ascending, back = np.unique(rows, return_inverse=True)
        return np.concatenate(list(self.pieces(name, ascending)))[back]

    def pieces(self, name: str, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """One of the arrays block by block, of each only those rows that are among ``rows`` [M], all by default.

        Raises:
            InputError: There is no such array, no block yet, or one that was lost.
        """
        if name not in ARRAYS:
            raise InputError(f"a suite has no array {name!r}; it has {', '.join(ARRAYS)}")
        if self.finished:
            self._check_whole()
        if not self.blocks:
            raise InputError(f"the suite {self.path} has no finished block yet")
        first = 0
        for number in self.blocks:
            with safe_open(self._arrays_file(number), framework="np") as file:
                last = first + file.get_slice(name).get_shape()[0]
                if rows is None:
                    yield file.get_tensor(name)
                else:
                    own = rows[(rows >= first) & (rows < last)] - first
                    yield file.get_tensor(name)[own] if len(own) else file.get_slice(name)[:0]
            first = last

    # --- writing ---------------------------------------------------------------------------------------------------

    def open(self, manifest: dict[str, Any], config: str) -> int | None:
        """Makes the folder, or goes on with one that the same search began.

        Gives the descriptor of a lock: until it is closed, no other search can open the folder. A finished suite is
        left as it is and needs none.

        Args:
            manifest: What makes the suite; its ``identity`` decides whether a folder is the same search's.
            config: The resolved configuration, YAML.

        Raises:
            InputError: The folder holds something else, or cannot be written.
        """
        try:
            known = (self.path / "manifest.json").exists()
            if known:
                self._check_same(manifest["identity"])
                if self.finished and self._is_intact():
                    return None
            elif occupied(self.path):
                raise InputError(f"{self.path} exists and is not a suite: choose another --out")
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = lock(self.path)  # before anything is changed: what another search is at is left alone
            try:
                if not known:  # first of all, so that a search stopped at any moment is recognised as its own
                    self._write_json("manifest.json", {"format_version": FORMAT_VERSION, "finished": False, **manifest})
                self._repair(config)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor
        except OSError as error:
            if error.errno not in WRONG_PLACE:
                raise
            raise InputError(
                f"cannot write to {self.path} ({os.strerror(error.errno)}): choose another --out"
            ) from error

    def discard(self) -> None:
        """Removes a suite in which there is nothing; one with a block, or what was made of blocks, stays as it is."""
        folders = [self.path / "parts", self.path / "arrays"]
        if (self.path / "cases.parquet").exists() or any(file for folder in folders for file in folder.iterdir()):
            return
        for name in ("manifest.json", "config.yaml", LOCK):
            (self.path / name).unlink(missing_ok=True)
        for folder in folders:
            folder.rmdir()
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def update_manifest(self, **changes: Any) -> None:
        """Changes entries of the manifest."""
        self._write_json("manifest.json", {**self.manifest, **changes})

    def write(self, cases: Cases) -> None:
        """Adds one block."""
        columns = [
            pa.nulls(len(cases.columns["id"]), field.type)
            if field.name not in cases.columns
            else pa.array(cases.columns[field.name].numpy(), type=field.type, from_pandas=True)  # no NaN but null
            for field in SCHEMA
        ]
        table = pa.table(columns, schema=SCHEMA.with_metadata({SECONDS: repr(cases.seconds)}))
        arrays = {name: tensor.numpy() for name, tensor in cases.arrays.items()}
        _replace(self._arrays_file(cases.block), lambda file: save_file(arrays, file))
        _replace(self._part_file(cases.block), lambda file: pq.write_table(table, file))

    def count_failures(self) -> int:
        """Failures in the blocks that are on disk now, whichever process wrote them."""
        for number in set(range(self.manifest["blocks"])) - self._failures.keys():
            if self._is_whole(number):
                part = self._part(number)
                self._failures[number] = int(pc.sum(pc.and_(part["failed"], part["viable"])).as_py() or 0)
        return sum(self._failures.values())

    def finish(self, stopped_by: str | None = None) -> None:
        """Joins the blocks and writes the summary, once all are there."""
        self.__dict__.pop("blocks", None)  # count again: other processes wrote some
        if len(self.blocks) < self.manifest["blocks"]:
            self.update_manifest(stopped_by=stopped_by)
            return
        joined = pa.concat_tables(self._part(n) for n in self.blocks)
        _replace(self.path / "cases.parquet", lambda file: pq.write_table(joined, file))
        self._write_json("summary.json", self._summarise(_to_pandas(joined)))
        self.update_manifest(finished=True, stopped_by=None)
        for name in ("table", "summary"):
            self.__dict__.pop(name, None)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _repair(self, config: str) -> None:
        """Makes what is missing, clears what a killed process left, finds out if a finished suite is still whole."""
        for folder in ("parts", "arrays"):
            (self.path / folder).mkdir(exist_ok=True)
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink()
        if not (self.path / "config.yaml").exists():
            _replace(self.path / "config.yaml", lambda file: file.write_text(config, encoding="utf-8"))
        if self.finished and not self._is_intact():
            self.update_manifest(finished=False)

    def _is_intact(self) -> bool:
        joined = _read_table(self.path / "cases.parquet")
        return self._damaged_blocks() == [] and joined is not None and self._stored_summary() is not None

    def _stored_summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` holds, None if it is missing or damaged."""
        try:
            content = _read_json(self.path / "summary.json")
        except InputError:
            return None
        return content if isinstance(content, dict) and "n_cases" in content else None

    def _damaged_blocks(self) -> list[int]:
        return sorted(set(range(self.manifest["blocks"])) - set(self.blocks))

    def _check_whole(self) -> None:
        """Refuses a finished suite that has lost files: rows and images would no longer belong together."""
        if lost := self._damaged_blocks():
            raise InputError(f"{self.path}: block {lost[0]} is missing or damaged; {RESTORED}")

    def _check_same(self, identity: str) -> None:
        there = self.manifest
        if there.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{self.path} holds a suite of format {there.get('format_version')}, this lsgen writes format "
                f"{FORMAT_VERSION}: choose another --out"
            )
        if there["identity"] != identity:
            raise InputError(
                f"{self.path} holds the suite of another configuration ({there['identity'][:8]}, this one is "
                f"{identity[:8]}; weights, data, seed or settings differ): choose another --out, or delete the folder"
            )

    def _part_file(self, number: int) -> Path:
        return self.path / "parts" / f"block-{number:05d}.parquet"

    def _arrays_file(self, number: int) -> Path:
        return self.path / "arrays" / f"block-{number:05d}.safetensors"

    def _is_whole(self, number: int) -> bool:
        """Both files are there and can be opened to the end, with the same number of rows."""
        part = _read_table(self._part_file(number))
        try:
            with safe_open(self._arrays_file(number), framework="np") as file:
                rows = {file.get_slice(name).get_shape()[0] for name in ARRAYS}
                return part is not None and rows == {part.num_rows}
        except (SafetensorError, OSError):
            return False

    def _part(self, number: int) -> pa.Table:
        return pq.read_table(self._part_file(number), schema=SCHEMA).replace_schema_metadata(None)

    def _seconds(self) -> float:
        return sum(float(pq.read_schema(self._part_file(n)).metadata[SECONDS]) for n in self.blocks)

    def _summarise(self, table: pd.DataFrame) -> dict[str, Any]:
        from lsgen.metrics import summarise

        return summarise(table, self.manifest["num_classes"], self._seconds())

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        _replace(self.path / name, lambda file: file.write_text(text, encoding="utf-8"))


def load_suite(path: str | Path) -> Suite:
    """Opens a suite for reading.

    Args:
        path: The folder that ``lsgen search`` wrote, finished or not.

    Raises:
        InputError: There is no suite, or one of another format version.
    """
    suite = Suite(path)
    if not (suite.path / "manifest.json").is_file():
        raise InputError(f"there is no suite at {path}: it has no manifest.json")
    if (version := suite.manifest.get("format_version")) != FORMAT_VERSION:
        raise InputError(f"{path} is a suite of format {version}; this lsgen reads format {FORMAT_VERSION}")
    return suite


def occupied(path: Path) -> bool:
    """Whether something other than a lock is there already."""
    return path.exists() and (not path.is_dir() or any(p.name != LOCK for p in path.iterdir()))


def lock(folder: Path) -> int:
    """Keeps other searches out of a folder until the returned descriptor is closed, or the process ends.

    What is locked is a file of its own, opened for writing: NFS passes no other lock on to other machines.

    Raises:
        InputError: Another process is at it.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            warnings.warn(f"{folder} is on a file system without locks: let no other search write there", stacklevel=2)
            return descriptor
        os.close(descriptor)
        raise InputError(f"another process is writing to {folder}: wait for it, or choose another --out") from error
    return descriptor


def _read_table(file: Path) -> pa.Table | None:
    """A Parquet file of cases, None if it is missing or any of it is damaged; columns of later versions are null."""
    try:
        return pq.read_table(file, schema=SCHEMA)
    except (pa.ArrowException, OSError):
        return None


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    """Integers and booleans that may be missing keep their type."""
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    optional = {f.name for f in SCHEMA if table.column(f.name).null_count}
    plain = table.to_pandas()
    kinds = {f.name: nullable[f.type] for f in SCHEMA if f.name in optional and f.type in nullable}
    return plain.astype(kinds)


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error})") from error


def _number(error: SafetensorError) -> int:
    """The system's number of what went wrong, which safetensors only mentions in its text."""
    told = re.search(r"os error (\d+)", str(error))
    return int(told[1]) if told else errno.EIO


def _replace(target: Path, write: Callable[[Path], object]) -> None:
    """Writes the target whole or not at all, and says what a user can do about it where it fails."""
    try:
        with replacing(target) as temporary:
            write(temporary)
    except (OSError, SafetensorError) as error:  # safetensors wraps the system's errors in one of its own
        if isinstance(error, (PermissionError, FileNotFoundError, NotADirectoryError)):
            raise
        number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (_number(error), None)
        raise OSError(
            number,
            f"cannot write {target} ({reason or error}); finished blocks are kept: make room and run the same command "
            f"again",
        ) from error
