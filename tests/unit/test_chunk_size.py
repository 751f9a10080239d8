import pytest
import torch

from lsgen.generators import CVAE
from lsgen.objectives import CrossEntropy, Misclassified
from lsgen.search import chunk_size
from lsgen.search.chunk_size import SIZES, fastest, passes_a_round
from lsgen.search.evaluator import Evaluator
from lsgen.suts import Classifier


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return Evaluator(CVAE(width=4).eval(), Classifier().eval(), CrossEntropy(), Misclassified())


def test_rounds_that_shrink_get_smaller_chunks(networks, monkeypatch):
    monkeypatch.setattr(chunk_size, "seconds", lambda _evaluator, chunk, _: 5e-3 + chunk * 1e-4)
    full, shrinking = (fastest(networks, False, candidates=300, steady=steady) for steady in (True, False))
    assert full == 320  # one pass with 20 rows of padding
    assert shrinking < full


def test_the_chunk_that_is_chosen_is_one_of_those_tried(networks):
    assert fastest(networks, needs_grad=False) in SIZES


@pytest.mark.parametrize(
    ("candidates", "most"),
    [(1, 32), (17, 32), (32, 32), (40, 43), (100, 103), (150, 154), (300, 300)],
)
def test_a_round_is_shared_out_so_that_little_is_padding(networks, monkeypatch, candidates, most):
    monkeypatch.setattr(chunk_size, "seconds", lambda _evaluator, chunk, _: 1e-3 + chunk * 1e-4)
    chunk = fastest(networks, needs_grad=False, candidates=candidates)
    assert chunk % 32 == 0
    assert passes_a_round(candidates, chunk, networks.lanes) * chunk <= most


def test_the_fastest_chunk_is_taken_and_a_larger_one_where_rounds_may_shrink_and_it_is_nearly_as_fast(
    networks, monkeypatch
):
    for small, steady, shrinking in ((0.98e-4, 64, 128), (0.9e-4, 64, 64)):
        monkeypatch.setattr(
            chunk_size, "seconds", lambda _evaluator, chunk, _, t=small: chunk * (1e-4 if chunk > 64 else t)
        )
        monkeypatch.setattr(chunk_size, "SIZES", (64, 128))
        assert fastest(networks, False, candidates=1280, steady=True) == steady
        assert fastest(networks, False, candidates=1280, steady=False) == shrinking


def test_no_size_is_tried_after_one_that_takes_long(networks, monkeypatch):
    tried = []

    def slow(_evaluator: Evaluator, chunk: int, _: bool) -> float:
        tried.append(chunk)
        return 3.0

    monkeypatch.setattr(chunk_size, "seconds", slow)
    assert fastest(networks, needs_grad=False) == 32
    assert tried == [32]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("you tried: can't allocate memory")])
@pytest.mark.parametrize(("room", "chosen"), [(100, 64), (20, 16), (1, 1)])
def test_the_chunk_fits_into_memory(networks, monkeypatch, room, chosen, error):
    def full(_evaluator: Evaluator, chunk: int, _: bool) -> float:
        if chunk > room:
            raise error
        return 1e-3

    monkeypatch.setattr(chunk_size, "seconds", full)
    assert fastest(networks, needs_grad=False) == chosen
