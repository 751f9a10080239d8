"""Every call of a decoder or SUT that a search makes, at one batch shape.

On a CPU the last bits of a result depend on the batch shape, though not on what else is in the batch. So all passes
run on chunks of one size, the last one padded, and a candidate scores the same whoever shares its chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgen.generators import Generator
from lsgen.objectives import Criterion, Objective
from lsgen.search.stream import Stream, carried
from lsgen.suts import SUT
from lsgen.types import Candidates, Evaluation, Seeds, from_uint8, round8, to_uint8

LANES = 2  # of rounds, which alternate: while half of the candidates fill a chunk, none is padded
FP16_SCALE = 1024.0  # a power of two, which costs no precision; gradients of up to 64 fit


@dataclass(frozen=True)
class Judged:
    """The SUT's word on stored images."""

    image: Tensor  # [N, C, H, W] uint8
    logits: Tensor  # [N, K]
    success: Tensor  # [N] bool

    def take(self, index: Tensor) -> Judged:
        """Those at ``index`` [M]."""
        return Judged(self.image[index], self.logits[index], self.success[index])

    def replace(self, index: Tensor, new: Judged) -> Judged:
        """The same with those at ``index`` [M] replaced by ``new`` (M of them)."""
        pairs = zip((self.image, self.logits, self.success), (new.image, new.logits, new.success), strict=True)
        return Judged(*(old.index_copy(0, index, fresh) for old, fresh in pairs))


class Evaluator:
    """Decodes, rounds to 8 bits, asks the SUT and scores, chunk by chunk.

    Args:
        generator: Its ``decode`` and ``encode``.
        sut: Its ``logits``.
        objective: The fitness.
        criterion: The test for success.
        chunk: Images in every pass.
    """

    def __init__(
        self,
        generator: Generator,
        sut: SUT,
        objective: Objective,
        criterion: Criterion,
        chunk: int = 32,
    ) -> None:
        self.generator, self.sut, self.objective, self.criterion = generator, sut, objective, criterion
        self.chunk = chunk
        self.decode, self.logits = generator.decode, sut.logits

    @property
    def lanes(self) -> int:
        """Parts in which rounds that take several passes come; each of them makes the host wait for a GPU."""
        return LANES if self.generator.device.type == "cpu" else 1

    def compile(self) -> None:
        """Compiles decoder and SUT, for the one batch shape there is."""
        self.decode = torch.compile(self.generator.decode, dynamic=False)
        self.logits = torch.compile(self.sut.logits, dynamic=False)

    def encode(self, images: Tensor, label: Tensor) -> Tensor:
        """Images [N, C, H, W] uint8 and labels [N] -> latents [N, *L]."""
        parts = [self.generator.encode(from_uint8(x), y).float()[:n] for n, x, y in self.chunks(images, label)]
        return torch.cat(parts)

    def images(self, latent: Tensor, label: Tensor) -> Tensor:
        """What latents [N, *L] with labels [N] decode to, [N, C, H, W]."""
        return torch.cat([self.decode(z, y).float()[:n] for n, z, y in self.chunks(latent, label)])

    def look(self, latent: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """What is stored for these latents [N, *L] with labels [N], uint8, and the SUT's logits for exactly that."""
        parts = []
        for n, z, y in self.chunks(latent, label):
            decoded = self.decode(z, y).float()
            image = to_uint8(decoded)
            logits = self.logits(from_uint8(image)).float()
            parts.append((image[:n], logits.where(_whole(decoded)[:, None], torch.nan)[:n]))  # 8 bits hide it
        image, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        return image, logits

    def judge(self, latent: Tensor, seeds: Seeds) -> Judged:
        """The same, and whether the criterion holds for these seeds."""
        image, logits = self.look(latent, seeds.label)
        return Judged(image, logits, self.successes(latent, image, logits, seeds))

    def successes(self, latent: Tensor, image: Tensor, logits: Tensor, seeds: Seeds) -> Tensor:
        """Which latents [N, *L] with these stored images and logits satisfy the criterion for their seeds, [N] bool."""
        parts = []
        for n, z, x, scores, *context in self.chunks(latent, image, logits, *carried(seeds)):
            parts.append((self.criterion(Candidates(z, from_uint8(x), scores, *context)) & _whole(scores))[:n])
        return torch.cat(parts)

    def promising(self, latent: Tensor, seeds: Seeds, bar: Tensor) -> Tensor | None:
        """Which candidates [S, P, *L] may score below their seed's bar [S], whatever the SUT says, [S, P] bool.

        None: the objective cannot tell without the SUT.
        """
        p = latent.shape[1]
        floor = self.objective.floor(latent.flatten(0, 1), seeds.latent.repeat_interleave(p, dim=0))
        return None if floor is None else floor.view(-1, p) < bar[:, None]

    def score(self, latent: Tensor, seeds: Seeds, needs_grad: bool) -> Evaluation:
        """One round of candidates [S, P, *L], by itself."""
        stream = Stream(self, needs_grad)
        return stream.get(stream.put(latent, seeds))

    def score_chunk(self, needs_grad: bool, *columns: Tensor) -> tuple[Tensor, ...]:
        """Logits, fitness, success and, where wanted, gradients of at most ``chunk`` candidates.

        Args:
            needs_grad: Whether gradients of the fitness are wanted.
            columns: Latent, label, target and origin of each.
        """
        n = len(columns[0])
        return tuple(t[:n] for t in self.run(needs_grad, *self._padded(columns)))

    def run(self, needs_grad: bool, z: Tensor, *context: Tensor) -> tuple[Tensor, ...]:
        """One pass, at whatever size; arguments and results are those of :meth:`score_chunk`."""
        with torch.set_grad_enabled(needs_grad):
            z = z.detach().requires_grad_(needs_grad)
            decoded = self.decode(z, context[0]).float()
            image = round8(decoded)
            logits = self.logits(image).float()
            candidates = Candidates(z, image, logits, *context)
            fitness = self.objective(candidates)
            grads = [_gradient(fitness, z)] if needs_grad else []
        with torch.no_grad():
            whole = _whole(decoded, logits)
            success = self.criterion(candidates) & whole
        return logits.detach(), fitness.detach().where(whole, torch.nan), success, *grads

    def chunks(self, *tensors: Tensor) -> Iterator[tuple]:
        """Pieces of ``chunk`` rows, the last one padded, each with its number of real rows in front.

        Without any rows there is one piece, of padding, so that results have their shapes.
        """
        for start in range(0, max(1, len(tensors[0])), self.chunk):
            pieces = [t[start : start + self.chunk] for t in tensors]
            yield len(pieces[0]), *self._padded(pieces)

    def _padded(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """Columns [N, ...] with zeros up to ``chunk`` rows."""
        missing = self.chunk - len(columns[0])
        return [F.pad(t, [0, 0] * (t.dim() - 1) + [0, missing]) for t in columns] if missing else columns


def _whole(*columns: Tensor) -> Tensor:
    """Which rows of decoded images, logits [N, ...] hold finite numbers only, [N] bool."""
    totals = [x.detach().flatten(1).sum(dim=1) for x in columns]  # a fifth of the time of asking every number
    return functools.reduce(torch.add, totals).isfinite()


def _gradient(fitness: Tensor, z: Tensor) -> Tensor:
    """D fitness / d z [N, *L]; scaled on the way where activations are fp16, in which small gradients vanish."""
    kind = z.device.type
    half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
    scale = FP16_SCALE if half else 1.0
    if not fitness.requires_grad:  # no candidate has a slope, e.g. a surprise that is infinite for all
        return torch.zeros_like(z)
    (grad,) = torch.autograd.grad(fitness.sum() * scale, z)
    return grad.nan_to_num() / scale if half else grad  # fp16 may still overflow: no reason to give a seed up


def use_channels_last(module: nn.Module, works: Callable[[], object]) -> None:
    """Lays a module's convolutions out channel by channel, which most CPUs and GPUs compute faster.

    Args:
        module: What is changed, in place.
        works: Called afterwards; where it fails, as foreign code with ``.view`` does, the usual layout comes back.
    """
    if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return
    try:
        module.to(memory_format=torch.channels_last)  # refuses parameters of five dimensions
        with torch.no_grad():
            works()
    except Exception:  # foreign code has its own ways to refuse; what fails in the usual layout too will say so there
        module.to(memory_format=torch.contiguous_format)
