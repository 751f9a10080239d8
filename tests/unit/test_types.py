from pathlib import Path

import torch

from lsgen.objectives import Both, Misclassified
from lsgen.search import LatentPGD, PriorSeeds
from lsgen.types import Candidates, SearchState, describe, from_uint8, round8, to_uint8


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
        "args": {"steps": 3, "step_size": 0.05, "radius": 0.5, "early_stop": False},
    }
    assert described["path"] == "a/b"
    assert described["shape"] == [1, 2]


def test_every_component_keeps_its_arguments_under_their_names():
    for component in (PriorSeeds(per_class=3, classes=[1]), Both(Misclassified(), Misclassified())):
        rebuilt = describe(component)
        assert rebuilt["class"] == type(component).__name__


def test_state_take_cuts_every_field():
    from lsgen.search.pgd import PGDState

    state = PGDState(origin=torch.arange(6.0).view(3, 2), delta=torch.ones(3, 2))
    part: SearchState = state.take(torch.tensor([2, 0]))
    assert part.origin.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert part.delta.shape == (2, 2)


def test_criteria_compose():
    c = Candidates(
        torch.zeros(2, 1), torch.zeros(2, 1, 1, 1), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(2).long()
    )
    assert (Misclassified() & Misclassified())(c).tolist() == [False, True]
