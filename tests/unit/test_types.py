from pathlib import Path

import torch

from lsgen.objectives import Both, Misclassified
from lsgen.search import LatentPGD, PriorSeeds
from lsgen.types import Seeds, describe, from_uint8, round8, to_uint8


def test_round8_is_exactly_what_is_stored_and_read_back():
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round8(x), from_uint8(to_uint8(x)))
    assert torch.equal(to_uint8(round8(x)), to_uint8(x))


def test_round8_passes_gradients_unchanged():
    x = torch.tensor([0.1, 0.7], requires_grad=True)
    (3 * round8(x)).sum().backward()
    assert torch.equal(x.grad, torch.tensor([3.0, 3.0]))


def test_stored_images_survive_a_round_trip_at_every_level():
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(from_uint8(levels)), levels)


def test_describe_nests_components_and_turns_paths_and_tuples_into_plain_data():
    described = describe({"searcher": LatentPGD(steps=3), "path": Path("a/b"), "shape": (1, 2)})
    assert described["searcher"] == {
        "class": "LatentPGD",
        "args": {
            "steps": 3,
            "step_size": 0.05,
            "radius": 0.5,
            "norm": "linf",
            "momentum": 0.0,
            "restarts": 1,
            "early_stop": False,
        },
    }
    assert described["path"] == "a/b"
    assert described["shape"] == [1, 2]


def test_every_component_keeps_its_arguments_under_their_names():
    for component in (PriorSeeds(per_class=3, classes=[1]), Both(Misclassified(), Misclassified())):
        rebuilt = describe(component)
        assert rebuilt["class"] == type(component).__name__


def test_take_cuts_every_field_and_leaves_out_what_is_not_there():
    seeds = Seeds(latent=torch.arange(6.0).view(3, 2), label=torch.tensor([7, 8, 9]))
    part = seeds.take(torch.tensor([2, 0]))
    assert part.latent.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert part.label.tolist() == [9, 7]
    assert part.target is None
