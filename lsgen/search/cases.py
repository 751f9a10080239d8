"""From what a block's search ended with to rows and arrays of a suite."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lsgen.metrics.functional import SSIM_WINDOW, boundary_gap, mse, pixel_norm, ssim, true_probability
from lsgen.search.evaluator import Judged
from lsgen.search.seeds import Block
from lsgen.types import Evaluation, Seeds, from_uint8

ROWS = 64  # cases that are compared with their seeds at once


@dataclass
class Cases:
    """One block, ready to be written: row i of every column and array is one case."""

    block: int
    columns: dict[str, Tensor]
    arrays: dict[str, Tensor]
    seconds: float = 0.0


@dataclass
class Outcome:
    """What a block's search has come to so far; all tensors have one entry a seed."""

    latent: Tensor  # [S, *L]
    iterations: Tensor  # [S] steps to the first success, the budget without one
    forward: Tensor  # [S] images shown to the SUT
    backward: Tensor  # [S] images with a backward pass
    broken: Tensor  # [S] bool: retired, because a fitness or a logit was no number
    misread: Tensor  # [S] bool: the SUT has read a candidate wrongly by now
    budget: int  # rounds of a seed

    @classmethod
    def at(cls, seeds: Seeds, success: Tensor, viable: Tensor, budget: int) -> Outcome:
        """The outcome before the first step: each seed itself."""
        iterations = torch.full_like(seeds.label, budget).where(~(success & viable), 0)
        forward, backward = torch.zeros_like(seeds.label), torch.zeros_like(seeds.label)
        broken, misread = torch.zeros_like(viable), torch.zeros_like(viable)
        return cls(seeds.latent.clone(), iterations, forward, backward, broken, misread, budget)

    def count(self, active: Tensor, label: Tensor, evaluation: Evaluation, step: int, passes: int) -> None:
        """Books one round of the active seeds: ``passes`` queries a candidate, who succeeded first, who is misread.

        Args:
            active: [A] their places.
            label: [A]
            evaluation: What the networks said of their candidates.
            step: From 0.
            passes: SUT forward passes that a candidate costs.
        """
        shown = evaluation.fitness.shape[1] if evaluation.asked is None else evaluation.asked.sum(dim=1)
        self.forward[active] += shown * passes
        if evaluation.grad is not None:
            self.backward[active] += shown
        before, hit = self.iterations[active], evaluation.success.any(dim=1)
        self.iterations[active] = before.clamp(max=step).where(hit, before)  # an earlier one stays
        wrong = evaluation.logits.argmax(dim=2) != label[:, None]  # without a finite answer, a seed is retired
        self.misread[active] |= (wrong if evaluation.asked is None else wrong & evaluation.asked).any(dim=1)

    def retire(self, index: Tensor, seeds: Seeds) -> None:
        """Gives up on the seeds at ``index``: they end where they began."""
        self.broken[index], self.misread[index] = True, False
        self.iterations[index] = self.budget
        self.latent[index] = seeds.latent[index]


def tabulate(
    block: Block, seeds: Seeds, first: Judged, last: Judged, outcome: Outcome, viable: Tensor, has_seed: bool
) -> Cases:
    """Rows and arrays of a block.

    ``pixel_l2`` and ``pixel_linf`` say what the search has changed: they are taken from the decoded seed. ``mse`` and
    ``ssim`` say how true to life a case is: where the seed was encoded from an image, they are taken from that image.

    Args:
        block: Its seeds' numbers and origins.
        seeds: Start latents and labels.
        first: The seeds' own images, judged.
        last: The found images, judged.
        outcome: Found latents and costs.
        viable: Which rows count as cases.
        has_seed: Whether distances from the seed mean something.
    """
    predicted = last.logits.argmax(1)
    columns = {
        "id": block.case_id,
        "seed_id": block.plan.seed_id,
        "label": seeds.label,
        "seed_predicted": first.logits.argmax(1),
        "seed_p_true": true_probability(first.logits, seeds.label),
        "viable": viable,
        "predicted": predicted,
        "p_true": true_probability(last.logits, seeds.label),
        "p_predicted": true_probability(last.logits, predicted),
        "failed": predicted != seeds.label,
        "success": last.success,
        "iterations": outcome.iterations,
        "queries": outcome.forward,
        "backward_queries": outcome.backward,
        "retired": outcome.broken,
        "boundary_gap": boundary_gap(last.logits),
    }
    origins = ("source_index", "target", "other_index", "other_label")
    columns |= {name: value for name in origins if (value := getattr(block.plan, name)) is not None}
    if has_seed:
        original = first.image if block.image is None else block.image.to(last.image.device)
        columns |= _changes(seeds.latent, outcome.latent, first.image, last.image, original)
    arrays = {
        "seed_latent": seeds.latent,
        "latent": outcome.latent,
        "seed_image": first.image,
        "image": last.image,
        "logits": last.logits,
    }
    return Cases(block.number, _on_cpu(columns), _on_cpu(arrays))


def _changes(*columns: Tensor) -> dict[str, Tensor]:
    """What a search did to each case: latents and stored images before and after, and what they are to look like.

    A few at a time: SSIM takes many times the memory of its images. And never one alone: a single large row is summed
    by several threads, in an order that depends on how many there are.
    """
    parts = []
    for piece in zip(*(column.split(ROWS) for column in columns), strict=True):
        n = len(piece[0])
        z0, z, x0, x, original = (column if n > 1 else column.repeat_interleave(2, dim=0) for column in piece)
        found = from_uint8(x)
        values = _moves(z0, z, from_uint8(x0), found) | _likeness(found, from_uint8(original))
        parts.append({name: value[:n] for name, value in values.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _moves(z0: Tensor, z: Tensor, x0: Tensor, x: Tensor) -> dict[str, Tensor]:
    """How far the search has moved each case from its seed: in the latent space, and as an image."""
    latent = (z - z0).flatten(1)
    return {
        "latent_l1": latent.abs().sum(1),
        "latent_l2": latent.norm(dim=1),
        "latent_linf": latent.abs().amax(1),
        "pixel_l2": pixel_norm(x, x0),
        "pixel_linf": pixel_norm(x, x0, order=torch.inf),
    }


def _likeness(image: Tensor, reference: Tensor) -> dict[str, Tensor]:
    """How much each case looks like what it was made from; images too small for SSIM have none."""
    likeness = {"mse": mse(image, reference)}
    if min(image.shape[2:]) >= SSIM_WINDOW:
        likeness["ssim"] = ssim(image, reference)
    return likeness
