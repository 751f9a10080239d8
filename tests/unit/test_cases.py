"""What a row of a suite is measured against."""

import numpy as np
import torch

from lsgen.metrics import functional as F
from lsgen.search.base import unit
from lsgen.search.cases import Outcome, _changes, tabulate
from lsgen.search.evaluator import Judged
from lsgen.search.seeds import Block, Plan
from lsgen.types import Seeds, from_uint8

N, SIDE = 5, 12
RNG = torch.Generator().manual_seed(0)


def images():
    return torch.randint(0, 256, (N, 1, SIDE, SIDE), dtype=torch.uint8, generator=RNG)


def judged(image):
    return Judged(image, torch.randn(N, 3, generator=RNG), torch.ones(N, dtype=torch.bool))


def block(image=None):
    plan = Plan(torch.arange(N) % 3, torch.arange(N), source_index=None if image is None else torch.arange(N))
    return Block(0, torch.arange(N), plan, image)


def rows(data_image, decoded, found, *, has_seed=True):
    seeds = Seeds(torch.zeros(N, 4), torch.arange(N) % 3)
    outcome = Outcome.at(seeds, torch.zeros(N, dtype=torch.bool), torch.ones(N, dtype=torch.bool), 9)
    outcome.latent = torch.full((N, 4), 0.5)
    first, last = judged(decoded), judged(found)
    return tabulate(block(data_image), seeds, first, last, outcome, torch.ones(N, dtype=torch.bool), has_seed), last


def test_likeness_is_taken_from_the_image_that_was_encoded_and_magnitude_from_the_decoded_seed():
    original, decoded, found = images(), images(), images()
    columns = rows(original, decoded, found)[0].columns
    x, x0, data = from_uint8(found), from_uint8(decoded), from_uint8(original)
    torch.testing.assert_close(columns["mse"], F.mse(x, data))
    torch.testing.assert_close(columns["ssim"], F.ssim(x, data))
    torch.testing.assert_close(columns["pixel_l2"], F.pixel_norm(x, x0))
    torch.testing.assert_close(columns["pixel_linf"], (x - x0).flatten(1).abs().amax(1))
    torch.testing.assert_close(columns["latent_l1"], torch.full((N,), 2.0))
    assert not torch.allclose(F.mse(x, data), F.mse(x, x0))


def test_without_a_data_set_image_likeness_is_taken_from_the_decoded_seed():
    decoded, found = images(), images()
    columns = rows(None, decoded, found)[0].columns
    torch.testing.assert_close(columns["mse"], F.mse(from_uint8(found), from_uint8(decoded)))
    torch.testing.assert_close(columns["ssim"], F.ssim(from_uint8(found), from_uint8(decoded)))


def test_without_a_seed_there_is_no_distance_and_small_images_have_no_ssim():
    columns = rows(None, images(), images(), has_seed=False)[0].columns
    assert {"mse", "ssim", "pixel_l2", "latent_l2"}.isdisjoint(columns)
    small = torch.zeros(N, 1, 8, 8, dtype=torch.uint8)
    assert "ssim" not in rows(None, small, small)[0].columns


def test_probabilities_are_those_of_label_and_of_prediction():
    cases, last = rows(None, images(), images())
    p = last.logits.softmax(1)
    torch.testing.assert_close(cases.columns["p_predicted"], p.amax(1))
    np.testing.assert_allclose(cases.columns["p_true"], p[torch.arange(N), torch.arange(N) % 3])


def test_a_large_case_alone_is_measured_the_same_by_any_number_of_threads():
    """Torch shares the sum of a single large row out to threads, and rounds differently for each number of them."""
    latent, image = torch.randn(2, 1, 200_000, generator=RNG), torch.rand(2, 1, 3, 200, 300, generator=RNG)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            pictures = (255 * image).byte()
            found.append(_changes(*latent, *pictures, pictures[0]) | {"unit": unit(latent[0, 0], p=1.0)})
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert all(len(found[0][name]) == 1 for name in found[0] if name != "unit")
