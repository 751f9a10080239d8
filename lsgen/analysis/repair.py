"""What a repair trains on and is measured on: failures of a suite, controls of the same classes, untouched images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lsgen.analysis import parts
from lsgen.errors import InputError
from lsgen.suite import Suite

if TYPE_CHECKING:
    from lsgen.data import ImageData, InMemory
    from lsgen.generators import Generator
    from lsgen.search import SearchTask, SeedSource
    from lsgen.suts import SUT

FAILURES = "failures"
ORIGINS = {"source_index": "split", "other_index": "other_split"}  # columns of images, and settings of whence
VARIANTS = {  # what is added to the training images
    "none": "nothing",
    "real": "real images",
    "random": "random samples",
    FAILURES: "failures",
}
MOST = 1000  # failures by default, as in ARGUS


@dataclass(frozen=True)
class Repair:
    """What all trainings of one repair share."""

    suite: Suite
    data: ImageData
    generator: Generator
    rows: np.ndarray  # the suite's failures, no image twice, [F]
    counts: np.ndarray  # images of each class that are added, [K]
    pool: np.ndarray  # rows of the validation images that the control with real images draws from, [P]
    test: InMemory  # what accuracy is measured on
    accuracy: float  # before
    variants: tuple[str, ...]
    epochs: int
    lr: float | None
    notes: tuple[str, ...]

    def settings(self) -> dict[str, Any]:
        """What decides the numbers; the number of repeats does not, so that some can be added."""
        manifest = self.suite.manifest
        return {
            "suite": manifest["identity"],
            "blocks": len(self.suite.blocks),
            "sut": manifest["sut"]["sha256"],
            "per_class": self.counts.tolist(),
            "epochs": self.epochs,
            "lr": self.lr,
        }

    def seed(self, repeat: int) -> int:
        """Another one than the suite's own, for each repeat."""
        return int(self.suite.manifest["seed"]) + 1 + repeat

    def chosen(self, repeat: int) -> np.ndarray:
        """Rows of the suite that are trained on in this repeat, [N]."""
        labels = self.suite.table["label"].to_numpy("int64")[self.rows]
        return self.rows[draw(labels, self.counts, self.seed(repeat))]

    def extra(self, variant: str, repeat: int) -> InMemory:
        """The images, uint8, and labels that this variant adds to the training images."""
        import torch

        from lsgen.data import InMemory

        if variant == FAILURES:
            rows = self.chosen(repeat)
            labels = self.suite.table["label"].to_numpy("int64")[rows]
            return InMemory(torch.from_numpy(self.suite.take("image", rows)), torch.from_numpy(labels))
        if variant == "random":
            y = torch.arange(len(self.counts)).repeat_interleave(torch.from_numpy(self.counts))
            return InMemory(sample(self.generator, y, self.seed(repeat)), y)
        held, wanted = self.data["val"], self.counts if variant == "real" else 0 * self.counts
        index = torch.from_numpy(self.pool[draw(held.labels.numpy()[self.pool], wanted, self.seed(repeat))])
        return InMemory(held.images[index], held.labels[index])


def prepare(suite: Suite, failures: int | None = None, epochs: int = 10, lr: float | None = None) -> Repair:
    """Looks at everything that a repair needs, before anything is trained.

    Args:
        suite: Its failures, its SUT, generator, data and search.
        failures: How many to train on; as many as can be matched by default, at most 1,000.
        epochs: Of each fine-tuning.
        lr: Learning rate; the SUT's own by default.

    Raises:
        InputError: There are no failures or too few, the SUT cannot be trained, or something has gone.
    """
    from lsgen.suts import accuracy

    rows = _failures(suite)
    task, data = parts.load_task(suite), parts.load_data(suite)
    _check_trainable(task.sut, lr)
    labels = suite.table["label"].to_numpy("int64")[rows]
    pool = _pool(task.seeds, data)
    counts = _counts(labels, data["val"].labels.numpy()[pool], data, failures)
    test, left_out = _untouched(suite, task.seeds, data)
    able = task.generator.conditional and task.generator.has_prior
    return Repair(
        suite=suite,
        data=data,
        generator=task.generator,
        rows=rows,
        counts=counts,
        pool=pool,
        test=test,
        accuracy=accuracy(task.sut, test.images, test.labels),
        variants=tuple(v for v in VARIANTS if able or v != "random"),
        epochs=epochs,
        lr=lr,
        notes=tuple(_notes(task, None if able else type(task.generator).__name__, left_out, data)),
    )


def _failures(suite: Suite) -> np.ndarray:
    """Rows of the suite's failures, of equal images only the first, [F]."""
    failed = suite.failures
    if not len(failed):
        raise InputError(f"the suite {suite.path} has no failures to learn from")
    _, first = np.unique(suite.take("image", failed).reshape(len(failed), -1), axis=0, return_index=True)
    return failed[np.sort(first)]


def _check_trainable(sut: SUT, lr: float | None) -> None:
    from lightning.pytorch.utilities.model_helpers import is_overridden

    if not is_overridden("training_step", sut):
        raise InputError(f"the suite's SUT is a {type(sut).__name__}, which cannot be trained: it has no training_step")
    if lr is not None and not hasattr(sut, "lr"):
        raise InputError(f"--lr: a {type(sut).__name__} has no setting lr")


def _pool(seeds: SeedSource, data: ImageData) -> np.ndarray:
    """Rows of the validation images that may be trained on: none that a fresh search begins at, or mixes in."""
    plan = (seeds.others(data) or seeds).plan(data)
    used = [getattr(plan, column) for column, place in ORIGINS.items() if getattr(seeds, place, None) == "val"]
    rows = np.arange(len(data["val"]))
    return np.setdiff1d(rows, np.concatenate([index.numpy() for index in used])) if used else rows


def _counts(labels: np.ndarray, pool: np.ndarray, data: ImageData, wanted: int | None) -> np.ndarray:
    """Images of each class that every variant adds, [K]: as many failures as held-back real images can match.

    Args:
        labels: Of the failures, [F].
        pool: Labels of the real images, [P].
        data: The data set.
        wanted: How many in all; as many as can be by default.
    """
    most = np.minimum(*(np.bincount(group, minlength=data.num_classes) for group in (labels, pool)))
    wanted = min(MOST, int(most.sum())) if wanted is None else wanted
    if wanted > most.sum() or not most.sum():
        raise InputError(
            f"--failures {wanted or 1}: only {most.sum():,} can be matched, class by class, with real images held back "
            f"from training; the suite has {len(labels):,} different failures, the validation split of {data.name} "
            f"{len(pool):,} images"
        )
    return spread(most, wanted)


def spread(most: np.ndarray, n: int) -> np.ndarray:
    """``n`` shared out over classes as evenly as ``most`` [K] allows, [K].

    Example:
        >>> spread(np.array([1, 5, 9]), 8).tolist()
        [1, 4, 3]
    """
    level = max(k for k in range(int(most.max()) + 1) if np.minimum(most, k).sum() <= n)
    counts = np.minimum(most, level)
    counts[np.flatnonzero(most > level)[: n - counts.sum()]] += 1
    return counts


def draw(labels: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Random positions in ``labels`` [N] that hold ``counts`` [K] of each class, sorted.

    Example:
        >>> labels = np.array([0, 1, 1, 0, 1])
        >>> np.bincount(labels[draw(labels, np.array([1, 2]), seed=0)]).tolist()
        [1, 2]
    """
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == k))[:count] for k, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))


def sample(generator: Generator, y: Any, seed: int) -> Any:
    """Decoded prior samples of the classes ``y`` [N], uint8 [N, C, H, W]."""
    import torch

    from lsgen.types import to_uint8

    rng = torch.Generator().manual_seed(seed)
    made = []
    with torch.no_grad():
        for label in y.split(256):
            z = generator.sample_prior(len(label), label, rng)
            made.append(to_uint8(generator.decode(z, label)))
    return torch.cat(made)


def _untouched(suite: Suite, seeds: SeedSource, data: ImageData) -> tuple[InMemory, int]:
    """The test images that no case was made from, and how many are left out because one was."""
    import torch

    from lsgen.data import InMemory

    used = [suite.table[column].dropna() for column, place in ORIGINS.items() if getattr(seeds, place, None) == "test"]
    test, keep = data["test"], torch.ones(len(data["test"]), dtype=torch.bool)
    for rows in used:
        keep[torch.tensor(rows.to_numpy("int64"))] = False
    if not keep.any():
        raise InputError(f"every test image of {data.name} was a seed of {suite.path}: none is left to measure on")
    return InMemory(test.images[keep], test.labels[keep]), int((~keep).sum())


def _notes(task: SearchTask, cannot_sample: str | None, left_out: int, data: ImageData) -> Iterator[str]:
    if task.sut.fault and data.fault is None:
        yield (
            f"The SUT was trained with a fault in its data ({task.sut.fault['class']}), and is now trained on with the "
            f"labels of {data.name} as they are: this alone heals it, whatever is added."
        )
    yield (
        f"Extra real images come from the validation split of {data.name}: the SUT was not trained on them, though "
        f"they may have chosen its best epoch. ARGUS took its extra real images out of the test set."
    )
    yield "Weights are those after the last epoch: validation images are trained on by one variant and can choose none."
    if left_out:
        yield f"{left_out:,} test images that cases were made from are left out of the test set."
    if task.seeds.others(data) is None:
        yield (
            f"Fresh searches begin at the suite's own seeds, since {data.name} has too few others: what they meet may "
            f"be what was trained on."
        )
    if cannot_sample:
        yield f"There is no control with random samples: a {cannot_sample} makes none whose label is known."
