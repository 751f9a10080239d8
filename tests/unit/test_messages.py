"""From what went wrong to a sentence, and arguments as people write them."""

import pytest
import torch

from lsgen import arguments
from lsgen.errors import InputError
from lsgen.lightning_cli import _refusal
from lsgen.messages import explain, of_parser


def test_a_reason_on_the_next_line_is_told_too():
    text = "Errors:\n    - Problem with given class_path 'some.Logger':\n        No module named some\n    - B"
    assert (
        str(_refusal(ValueError(f"Parser key 'logger':\n{text}")))
        == "Problem with given class_path 'some.Logger': No module named some"
    )
    assert str(_refusal(ValueError("Errors:\n    - Expected an int\n    - B"))) == "Expected an int"


def test_what_was_typed_is_not_suggested():
    assert of_parser("Unrecognized arguments: --out=x") == "unrecognized argument --out=x"
    assert of_parser("Unrecognized arguments: --oot=x") == "unrecognized argument --oot=x; did you mean '--out'?"


def test_too_little_memory_is_a_sentence():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**55)
    for cause in (error.value, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        status, said = explain(cause)
        assert status == 1
        assert "not enough memory" in said
        assert str(cause)[:60].strip() in said


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        (["--model.seeds.target=null"], ['--model.seeds={"init_args": {"target": null}}']),
        (["--model.seeds.init_args.target", "~", "--x=1"], ['--model.seeds={"init_args": {"target": null}}', "--x=1"]),
        (
            ["--model.objective.surprise.per_class=null"],
            ['--model.objective={"init_args": {"surprise": {"init_args": {"per_class": null}}}}'],
        ),
        (["--model.max_queries=null"], ["--model.max_queries=null"]),  # the parser gets these right
        (["--trainer.callbacks.x=null"], ["--trainer.callbacks.x=null"]),
        (
            ["--model.seeds.classes", "[1,2]", "--config", "null"],
            ["--model.seeds.classes", "[1,2]", "--config", "null"],
        ),
        (["--model.seeds.target"], ["--model.seeds.target"]),  # the parser says what is missing
    ],
)
def test_nulls_are_spelt_so_that_the_parser_takes_them(given, spelt):
    assert arguments.spell_nulls(["search", *given]) == ["search", *spelt]


@pytest.mark.parametrize("key", ["model.change.bounds", "model.sut.model_args.norm"])
def test_a_null_in_a_table_would_replace_the_table_and_is_refused(key):
    with pytest.raises(InputError, match=f"{key}: null must be given in a configuration file"):
        arguments.spell_nulls(["search", f"--{key}=null"])


def test_values_are_checked_in_lsgens_classes_wherever_they_are():
    def settings(**of_pgd):
        searcher = {"class_path": "lsgen.search.LatentPGD", "init_args": of_pgd}
        return {
            "model": {
                "class_path": "lsgen.search.SearchTask",
                "init_args": {"searcher": searcher, "max_queries": None},
            },
            "trainer": {"callbacks": [{"class_path": "some.other.Class", "init_args": {"many": 10**30}}]},
        }

    arguments.check_values(settings(steps=3, radius=float("inf")))  # the class says what it thinks of infinity
    for wrong, says in (
        ({"steps": None}, r"model\.searcher\.steps: expected int, got null"),
        ({"steps": 10**16}, r"model\.searcher\.steps: .* is too large"),
        ({"radius": -1e39}, r"model\.searcher\.radius: -1e\+39 is more"),
        ({"norm": None}, r"model\.searcher\.norm: expected 'linf' or 'l2', got null"),
        ({"steps": [3, 10**30]}, r"model\.searcher\.steps: .* is too large"),
    ):
        with pytest.raises(InputError, match=says):
            arguments.check_values(settings(**wrong))
