"""Image properties on drawings whose answers are known, and comparisons against brute force."""

import math

import numpy as np
import pytest
import torch

from lsgen.analysis.properties import (
    PROPERTIES,
    brightness,
    compare,
    contrast,
    hue,
    measure,
    sharpness,
    shifts,
    size,
    turns,
)


def disc(radius: float, level: float = 1.0, side: int = 64, at: tuple[int, int] = (32, 32)) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return level * ((x - at[1]) ** 2 + (y - at[0]) ** 2 <= radius**2).float().view(1, 1, side, side)


# --- properties ------------------------------------------------------------------------------------------------------


def test_brightness_and_contrast_are_mean_and_spread():
    images = torch.rand(4, 3, 8, 8)
    assert brightness(images).numpy() == pytest.approx(images.numpy().mean((1, 2, 3)), rel=1e-5)
    assert contrast(images).numpy() == pytest.approx(images.numpy().mean(1).std((1, 2)), rel=1e-5)


@pytest.mark.parametrize("radius", [8, 16])
def test_the_size_of_a_disc_is_that_of_its_second_moment(radius):
    expected = 2 * radius / math.sqrt(2) / 64  # mean square distance of a disc from its centre: r²/2
    assert size(disc(radius)).item() == pytest.approx(expected, rel=0.02)


def test_size_knows_neither_place_nor_level_nor_sign():
    usual = size(disc(8)).item()
    assert size(disc(8, at=(28, 36))).item() == pytest.approx(usual, rel=0.02)
    assert size(disc(8, level=0.3)).item() == pytest.approx(usual, rel=1e-4)
    assert size(1 - disc(8)).item() == pytest.approx(usual, rel=1e-4)


def test_sharpness_falls_with_blur_and_not_with_contrast():
    image = (torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    blurred = torch.nn.functional.avg_pool2d(image, 3, stride=1, padding=1)
    assert sharpness(blurred) < 0.7 * sharpness(image)
    assert sharpness(0.2 * image + 0.4).item() == pytest.approx(sharpness(image).item(), rel=1e-4)


@pytest.mark.parametrize(
    ("colour", "degrees"), [((1, 1, 0), 60), ((0, 1, 1), 180), ((1, 0, 1), 300), ((0.6, 0.5, 0.5), 0)]
)
def test_hue_is_the_usual_angle(colour, degrees):
    assert hue(torch.tensor(colour).float().view(1, 3, 1, 1).expand(1, 3, 4, 4)).item() == pytest.approx(
        degrees, abs=0.1
    )


def test_what_an_image_does_not_have_is_nan():
    flat = np.full((1, 1, 16, 16), 40, np.uint8)
    measured = measure(flat)
    assert np.isnan(measured["size"]).all()
    assert np.isnan(measured["sharpness"]).all()
    assert "hue" not in measured
    light = np.full((1, 1, 16, 16), 200, np.uint8)  # no light figure on a dark ground
    assert np.isnan(measure(light)["stroke thickness"]).all()
    gray = np.full((1, 3, 16, 16), 200, np.uint8)
    assert np.isnan(measure(gray)["hue"]).all()
    assert "stroke thickness" not in measure(gray)


def test_measuring_is_the_same_in_pieces():
    images = np.random.default_rng(0).integers(0, 256, (1203, 1, 8, 8), dtype=np.uint8)
    whole, parts = measure(images), [measure(images[:7]), measure(images[7:])]
    assert set(whole) == {p.name for p in PROPERTIES} - {"hue"}
    for name, values in whole.items():
        assert values == pytest.approx(np.concatenate([p[name] for p in parts]), nan_ok=True)
    assert all(len(v) == 0 for v in measure(images[:0]).values())


def test_turns_are_taken_from_each_class_own_mean():
    degrees = np.array([350.0, 10.0, 180.0, 90.0, 110.0, 80.0, np.nan])
    labels = np.array([0, 0, 0, 1, 1, 1, 1])
    usual = np.array([True, True, False, True, True, False, False])
    assert turns(degrees, labels, usual) == pytest.approx([-10, 10, -180, -10, 10, -20, np.nan], nan_ok=True)


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_each_member_is_compared_with_its_own_class():
    rng = np.random.default_rng(0)
    labels, others_labels = rng.integers(0, 3, 40), rng.integers(0, 3, 90)
    others = rng.normal(size=90) + 10 * others_labels  # classes lie far apart
    group = rng.normal(0.7, 1, size=40) + 10 * labels
    signs = [np.sign(v - others[others_labels == k]).mean() for v, k in zip(group, labels, strict=True)]
    difference = compare(group, labels, others, others_labels)
    assert difference.effect == pytest.approx(np.mean(signs))
    middle = np.mean([np.median(others[others_labels == k]) for k in labels])
    assert difference.others == pytest.approx(middle)
    assert not compare(group - 0.7, labels, others, others_labels).clear
    assert compare(group + 3, labels, others, others_labels).clear


def test_a_large_effect_of_few_members_is_not_clear():
    others, labels = np.arange(100.0), np.zeros(100, int)
    few = compare(np.array([95.0, 70.0]), np.zeros(2, int), others, labels)
    assert few.effect > 0.42
    assert not few.clear
    assert compare(np.linspace(70, 95, 30), np.zeros(30, int), others, labels).clear


def test_chance_is_three_standard_errors_of_the_effect():
    rng = np.random.default_rng(0)
    labels, others_labels = np.repeat([0, 1], [4, 12]), np.repeat([0, 1], 30)
    draws = [compare(rng.normal(size=16), labels, rng.normal(size=60), others_labels) for _ in range(400)]
    assert draws[0].chance == pytest.approx(3 * np.std([d.effect for d in draws]), rel=0.12)


def test_shifts_are_mean_differences_in_units_of_the_spread_within_classes():
    rng = np.random.default_rng(0)
    labels, others_labels = np.repeat([0, 1], [10, 30]), np.repeat([0, 1], [200, 100])
    others = rng.normal(size=(300, 2)) * [1, 3] + 50 * others_labels[:, None]
    group = rng.normal(size=(40, 2)) * [1, 3] + 50 * labels[:, None] + [0, 6]
    shift, chance = shifts(group, labels, others, others_labels)
    assert shift == pytest.approx([0, 2], abs=0.5)
    assert chance == pytest.approx(3 * math.sqrt((0.25**2) * (1 / 10 + 1 / 200) + 0.75**2 * (1 / 30 + 1 / 100)))


def test_too_few_others_are_not_compared_with():
    values, labels = np.arange(4.0), np.zeros(4, int)
    assert compare(values, labels, values, labels) is None
    assert compare(values, labels, np.arange(9.0), np.ones(9, int)) is None
    assert compare(np.full(4, np.nan), labels, np.arange(9.0), np.zeros(9, int)) is None
    assert shifts(values[:, None], labels, values[:, None], labels) is None
