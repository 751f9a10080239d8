"""What a bench is made of: grids, claims, comparisons, tables."""

import csv
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from lsgen.bench import write
from lsgen.bench.check import Facts, Outlook
from lsgen.bench.claims import claim
from lsgen.bench.folder import check_folder, failure, load_facts, mark_folder, note_failure, save_facts
from lsgen.bench.grid import Cell, Grid, Model, read_grid
from lsgen.bench.results import COLUMNS, Mark, Row, compare
from lsgen.bench.sheets import State, Tables
from lsgen.errors import InputError
from tests.conftest import ROOT

PGD = "configs/mnist5k/search/pgd.yaml"
GRID = {
    "repeats": 2,
    "set": {"model.seeds.per_class": 10},
    "searches": {"PGD": PGD, "GA low": {"config": PGD, "set": {"model.searcher": "MarginGA"}}},
    "data": {
        "mnist5k": {
            "suts": {"CNN": "runs/sut.ckpt"},
            "generators": {
                "CVAE": {"config": "configs/mnist5k/cvae.yaml", "fit": {"trainer.max_epochs": 1}},
                "GAN": {
                    "checkpoint": "gan.ckpt",
                    "set": {"model.seeds.per_class": 1, "model.seeds": "PriorSeeds"},
                },
            },
        }
    },
}


def grid_of(tmp_path, content, name="my.yaml", **options):
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return read_grid(file, **options)


# --- grid ------------------------------------------------------------------------------------------------------------


def test_a_grid_unfolds_into_ordinary_searches(tmp_path):
    grid = grid_of(tmp_path, GRID)
    assert grid.out == Path("runs/bench/my")
    assert [model.label for model in grid.models] == ["mnist5k/CNN (SUT)", "mnist5k/CVAE", "mnist5k/GAN"]
    assert len(grid.cells) == 8
    assert [cell.combination[2:] for cell in grid.cells[::2]] == [
        ("CVAE", "PGD"),
        ("GAN", "PGD"),
        ("CVAE", "GA low"),
        ("GAN", "GA low"),
    ]
    last = grid.cells[-1]
    assert last.name == "mnist5k-CNN-GAN-GA-low-1"
    assert last.args[:3] == ["search", "--config", PGD]
    assert last.args[-2:] == ["--out", "runs/bench/my/cells/mnist5k-CNN-GAN-GA-low-1"]
    flags = last.args[3:-2]
    assert set(flags) == {
        "--seed_everything=1",
        "--data.name=mnist5k",
        "--trainer.devices=1",
        "--trainer.logger=false",
        "--model.searcher=MarginGA",
        "--model.sut=lsgen.suts.pretrained",
        "--model.sut.path=runs/sut.ckpt",
        "--model.generator=lsgen.generators.pretrained",
        "--model.generator.path=gan.ckpt",
        "--model.seeds=PriorSeeds",
        "--model.seeds.per_class=1",  # of the generator, not of all cells
    }
    assert flags.index("--model.seeds=PriorSeeds") < flags.index("--model.seeds.per_class=1")
    assert last.command.startswith("lsgen search --config ")


def test_a_configuration_says_where_its_checkpoint_goes(tmp_path):
    cvae = grid_of(tmp_path, GRID).models[1]
    assert cvae.checkpoint == Path("runs/mnist5k/cvae/best.ckpt")
    assert cvae.fit_args == ["--trainer.devices=1", "--trainer.max_epochs=1"]
    moved = yaml.safe_load(yaml.safe_dump(GRID))
    moved["data"]["mnist5k"]["generators"]["CVAE"]["fit"]["trainer.default_root_dir"] = "elsewhere"
    assert grid_of(tmp_path, moved).models[1].checkpoint == Path("elsewhere/best.ckpt")


def test_two_trainings_cannot_leave_their_weights_in_one_place(tmp_path):
    small = {"config": "configs/mnist5k/cvae.yaml", "fit": {"model.latent_dim": 4}}
    with pytest.raises(InputError, match=r"small and mnist5k/CVAE are trained differently and would both leave"):
        grid_of(tmp_path, changed("data/mnist5k/generators/small", small))
    small["fit"]["trainer.default_root_dir"] = "elsewhere"
    assert len(grid_of(tmp_path, changed("data/mnist5k/generators/small", small)).models) == 4


def test_flags_for_one_search_only(tmp_path):
    special = {"checkpoint": "gan.ckpt", "for": {"PGD": {"model.searcher.radius": 0.1}}}
    cells = grid_of(tmp_path, changed("data/mnist5k/generators/GAN", special)).cells
    found = {(c.generator.name, c.search): "--model.searcher.radius=0.1" in c.args for c in cells}
    assert found == {("CVAE", "PGD"): False, ("GAN", "PGD"): True, ("CVAE", "GA low"): False, ("GAN", "GA low"): False}


def test_shipped_configurations_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert grid_of(tmp_path, GRID).cells[0].config == ROOT / PGD


def test_wandb_runs_are_named_after_their_cells(tmp_path):
    grid = grid_of(tmp_path, GRID, flags=write.wandb_flags("my"))
    args = grid.cells[0].args
    assert {"--trainer.logger=WandbLogger", "--trainer.logger.group=my"} < set(args)
    assert "--trainer.logger.name=mnist5k-CNN-CVAE-PGD-0" in args


@pytest.mark.parametrize("name", ["families_mnist", "smoke"])
def test_shipped_grids_can_be_read(name):
    grid = read_grid(ROOT / "configs/bench" / f"{name}.yaml")
    assert grid.out == Path("runs/bench") / name
    generators = {model.name for model in grid.models if model.role == "generator"}
    searches = {cell.search for cell in grid.cells}
    assert len(grid.cells) == len(generators) * len(searches) * (3 if name == "smoke" else 1)
    if name == "families_mnist":
        assert generators == {"VAE", "CVAE", "VQ-VAE", "GAN", "diffusion"}
        assert searches == {"PGD", "MarginGA low", "MarginGA high"}


def changed(path, value):
    content = yaml.safe_load(yaml.safe_dump(GRID))
    *parents, last = path.split("/")
    place = content
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


BAD = {
    "no YAML": ("a: [", ["is no YAML"]),
    "no mapping": ("- 1", ["expected a mapping with out, repeats, set, data, searches"]),
    "unknown key": (changed("generators", {}), ["no key 'generators'", "searches"]),
    "no searches": (changed("searches", None), ["searches is missing"]),
    "empty searches": (changed("searches", {}), ["searches must be a mapping from names", "{}"]),
    "no SUT": (changed("data/mnist5k/suts", None), ["data.mnist5k: suts is missing"]),
    "repeats": (changed("repeats", 0), ["repeats must be a number of at least 1, got 0"]),
    "repeats true": (changed("repeats", True), ["repeats must be a number"]),
    "seed": (changed("set", {"seed_everything": 7}), ["set: a bench sets seed_everything by itself", "repeats"]),
    "flags": (changed("set", ["--x"]), ["set: expected flags", "['--x']"]),
    "no such search": (
        changed("searches/PGD", "configs/no.yaml"),
        ["searches.PGD", "no configuration configs/no.yaml"],
    ),
    "both": (
        changed("data/mnist5k/suts/CNN", {"checkpoint": "a.ckpt", "config": "configs/mnist5k/sut.yaml"}),
        ["suts.CNN: give checkpoint, or config"],
    ),
    "fit of nothing": (
        changed("data/mnist5k/suts/CNN", {"checkpoint": "a.ckpt", "fit": {"trainer.max_epochs": 1}}),
        ["suts.CNN: fit is for a config"],
    ),
    "nothing": (
        changed("data/mnist5k/generators/GAN", {"set": {}}),
        ["generators.GAN: what is it?", "model.generator"],
    ),
    "misspelt": (changed("data/mnist5k/generators/GAN", {"chekpoint": "x"}), ["no key 'chekpoint'", "checkpoint"]),
    "for no search": (
        changed("data/mnist5k/generators/GAN", {"checkpoint": "x", "for": {"PDG": {"a": 1}}}),
        ["mnist5k/GAN: for: there is no search 'PDG'", "searches are"],
    ),
    "same folder": (changed("searches", {"a b": PGD, "a-b": PGD}), ["would share a folder"]),
    "no name": (changed("searches", {"!": PGD}), ["a name needs letters or digits", "'!'"]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_grid_is_said(tmp_path, case):
    content, words = BAD[case]
    with pytest.raises(InputError) as error:
        grid_of(tmp_path, content)
    assert all(word in str(error.value) for word in words), error.value


def test_a_training_must_say_where_it_goes(tmp_path):
    (tmp_path / "fit.yaml").write_text("model: {}\n")
    with pytest.raises(InputError, match=r"no trainer\.default_root_dir"):
        grid_of(tmp_path, changed("data/mnist5k/suts/CNN", str(tmp_path / "fit.yaml")))


def test_a_grid_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_grid(tmp_path / "no.yaml")


# --- claims ----------------------------------------------------------------------------------------------------------

COMPETE = """
import sys, time
from pathlib import Path
from lsgen.bench.claims import claim
out, tasks = Path(sys.argv[1]), int(sys.argv[2])
(out / f"ready-{sys.argv[3]}").touch()
while len(list(out.glob("ready-*"))) < 4: time.sleep(0.01)
for task in range(tasks):
    with claim(out / "claims" / str(task)) as mine:
        done = out / f"done-{task}"
        if mine and not done.exists():
            with (out / "log").open("a") as log: log.write(f"{task}\\n")
            time.sleep(0.002)
            done.touch()
"""
HOLD = """
import sys, time
from pathlib import Path
from lsgen.bench.claims import claim
with claim(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def test_of_several_processes_one_does_each_task(tmp_path):
    commands = [[sys.executable, "-c", COMPETE, str(tmp_path), "50", str(i)] for i in range(4)]
    processes = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(50))


def test_a_killed_process_leaves_no_claim(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "cell")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout.readline() == "True\n"
    with claim(tmp_path / "cell") as mine:
        assert not mine
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(10)
    with claim(tmp_path / "cell") as mine:
        assert mine
    holder.stdout.close()


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("lsgen.bench.claims.fcntl.flock", refuse)
    with pytest.raises(InputError, match="without locks"), claim(tmp_path / "cell"):
        pass


# --- folder ----------------------------------------------------------------------------------------------------------


def small_grid(out, names=("PGD",)):
    sut, generator = Model("sut", "d", "s"), Model("generator", "d", "g")
    cells = [Cell("d", sut, generator, name, 0, Path("x.yaml"), {"trainer.logger": False}, out) for name in names]
    return Grid("small", out, [sut, generator], cells)


def test_folders_of_other_things_are_refused(tmp_path):
    grid = small_grid(tmp_path / "out")
    outlooks = {cell.name: Outlook() for cell in grid.cells}
    check_folder(grid, outlooks)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").touch()
    with pytest.raises(InputError, match="not the folder of a bench"):
        check_folder(grid, outlooks)
    (tmp_path / "out/thesis.tex").unlink()
    mark_folder(grid)
    check_folder(grid, outlooks)
    other = small_grid(tmp_path / "out", ("random",))
    with pytest.raises(InputError, match="another grid, with cells such as d-s-g-PGD-0"):
        check_folder(other, {cell.name: Outlook() for cell in other.cells})
    larger = small_grid(tmp_path / "out", ("PGD", "random"))  # a grid may grow
    check_folder(larger, {cell.name: Outlook() for cell in larger.cells})
    (tmp_path / "out/bench.json").write_text("[")
    with pytest.raises(InputError, match=r"bench\.json cannot be read"):
        check_folder(grid, outlooks)


def test_failures_and_facts_are_kept(tmp_path):
    assert failure(tmp_path, "d/g") is None
    note_failure(tmp_path, "d/g", "no luck", "run 1")
    assert failure(tmp_path, "d/g") == {"reason": "no luck", "run": "run 1"}
    note_failure(tmp_path, "d/g", None, "run 2")
    assert failure(tmp_path, "d/g") is None
    facts = Facts("abc", "CVAE", 16, None, 0.5)
    save_facts(tmp_path, {"d/g": facts})
    save_facts(tmp_path, {"d/h": facts})
    assert load_facts(tmp_path) == {"d/g": facts, "d/h": facts}


# --- columns ---------------------------------------------------------------------------------------------------------


def column(key):
    return next(column for column in COLUMNS if column.key == key)


def suite_of(**columns):
    n = len(columns["seed_id"])
    filled = {"label": [0] * n, "seed_predicted": [0] * n, "viable": [True] * n, "failed": [False] * n}
    table = pd.DataFrame(filled | {"seed_p_true": [0.9] * n} | columns)
    for name in ("valid", "preserved"):
        table[name] = pd.array(columns.get(name, [None] * n), dtype="boolean")
    return SimpleNamespace(table=table, summary={"n_cases": int(table["viable"].sum()), "seconds": 3.0})


def test_shares_of_the_published_table():
    # ICST25: % misclassified of viable seeds, % valid of failures, % preserved of valid failures
    suite = suite_of(
        seed_id=[0, 1, 2, 3, 4],
        seed_predicted=[0, 0, 0, 0, 1],
        viable=[True, True, True, True, False],
        failed=[True, True, True, False, False],
        valid=[True, True, False, None, None],
        preserved=[True, False, True, None, None],
        queries=[2, 4, 6, 8, 1],
    )
    assert column("seed_viability").seeds(suite.table).mean() == 0.8
    assert column("seed_viability").count(suite) == 4
    assert column("misclassified").seeds(suite.table).tolist() == [1, 1, 1, 0]
    assert column("misclassified").count(suite) == 3
    assert column("valid").value(suite) == pytest.approx(2 / 3)
    assert column("valid").count(suite) == 2
    assert column("preserved").value(suite) == 0.5
    assert column("preserved").count(suite) == 1
    assert column("queries").value(suite) == 5  # of viable cases
    assert column("seconds").value(suite) == 0.75
    silent = suite_of(seed_id=[0, 1], seed_p_true=[0.9, None])  # the SUT has no answer to the second
    assert column("seed_viability").count(silent) == 1


def test_without_an_oracle_validity_is_null():
    suite = suite_of(seed_id=[0, 1], failed=[True, False])
    assert column("valid").value(suite) is None
    assert column("preserved").value(suite) is None


def test_cases_of_one_seed_count_as_one_in_comparisons():
    suite = suite_of(seed_id=[0, 0, 1, 1], failed=[True, False, False, False], queries=[1, 3, 5, 7])
    assert column("failure_rate").seeds(suite.table).tolist() == [0.5, 0.0]
    assert column("queries").seeds(suite.table).tolist() == [2.0, 6.0]


# --- comparisons -----------------------------------------------------------------------------------------------------


class FakeRow(Row):
    """Numbers without suites."""

    def __init__(self, generator, repeats, seeds=None, search="PGD"):
        cell = small_grid(Path("out")).cells[0]
        renamed = Cell(**{**vars(cell), "generator": Model("generator", "d", generator), "search": search})
        super().__init__([renamed] * max(1, len(repeats)))
        self.__dict__["values"] = {column.key: [] for column in COLUMNS} | {"failure_rate": repeats}
        self.__dict__["cut_short"] = False
        self.__dict__["per_seed"] = np.array([] if seeds is None else seeds, dtype=float)

    def seeds(self, column):
        return self.per_seed

    def count(self, column):
        return None


def marks_of(*rows, key="failure_rate"):
    marks = compare(list(rows))
    return [marks[number, key] for number in range(len(rows))]


def test_repeats_are_compared_with_welch_and_holm():
    a, b, c = [0.9, 0.95, 0.92, 0.93], [0.88, 0.91, 0.93, 0.9], [0.1, 0.12, 0.11, 0.1]
    best, near, far = marks_of(FakeRow("A", a), FakeRow("B", b), FakeRow("C", c))
    p_near = stats.ttest_ind(a, b, equal_var=False).pvalue
    p_far = stats.ttest_ind(a, c, equal_var=False).pvalue
    assert best == Mark(best=True)
    assert near.alike
    assert near.p_value == pytest.approx(p_near)  # the larger of two
    assert not far.alike
    assert far.p_value == pytest.approx(2 * p_far)
    assert {near.test, far.test} == {"welch"}


def test_a_search_that_was_cut_short_is_not_called_the_quickest():
    short, whole = FakeRow("short", [0.0]), FakeRow("whole", [1.0])
    for row, iterations in ((short, 3.0), (whole, 27.0)):
        row.values["iterations"] = [iterations]
        row.__dict__["cut_short"] = row is short
    slow = FakeRow("slow", [1.0])
    slow.values["iterations"], slow.__dict__["cut_short"] = [30.0], False
    assert [m.best for m in marks_of(short, whole, slow, key="iterations")] == [False, True, False]
    assert [m.best for m in marks_of(short, whole, slow)] == [False, True, True]


@pytest.mark.parametrize(
    ("limit", "failed", "short"), [(None, False, False), (60, True, False), (60, False, True), (99, False, False)]
)
def test_a_row_is_cut_short_where_a_limit_ended_a_seed_without_a_failure(limit, failed, short, monkeypatch):
    monkeypatch.setattr("lsgen.bench.results.task_settings", lambda suite: {"max_queries": limit})
    row = Row([small_grid(Path("out")).cells[0]])
    row.__dict__["suites"] = [suite_of(seed_id=[0, 1], failed=[True, failed], queries=[2, 57], iterations=[0, 5])]
    assert row.cut_short == short


def test_holm_can_make_a_difference_insignificant():
    a, b, c = [0.5, 0.52, 0.54, 0.56], [0.46, 0.48, 0.49, 0.51], [0.461, 0.481, 0.491, 0.511]
    assert all(0.025 < stats.ttest_ind(a, other, equal_var=False).pvalue < 0.05 for other in (b, c))
    assert all(mark.alike for mark in marks_of(FakeRow("A", a), FakeRow("B", b), FakeRow("C", c))[1:])
    assert not marks_of(FakeRow("A", a), FakeRow("B", b))[1].alike


def test_a_single_repeat_is_compared_over_seeds():
    a, b = [1] * 30 + [0] * 2, [1] * 20 + [0] * 12
    best, other = marks_of(FakeRow("A", [30 / 32], a), FakeRow("B", [20 / 32], b))
    assert best.best
    assert other.test == "fisher"
    assert other.p_value == pytest.approx(stats.fisher_exact([[30, 2], [20, 12]]).pvalue)
    assert not other.alike
    rng = np.random.default_rng(0)
    a, b = rng.random(40), rng.random(50) * 0.9
    _, other = marks_of(FakeRow("A", [a.mean()], a), FakeRow("B", [b.mean()], b))
    assert other.test == "mann-whitney"
    assert other.p_value == pytest.approx(stats.mannwhitneyu(a, b, method="asymptotic").pvalue)


def test_repeats_that_are_all_the_same_say_nothing_so_seeds_do():
    _, other = marks_of(FakeRow("A", [1.0, 1.0], [1] * 9), FakeRow("B", [8 / 9, 8 / 9], [1] * 8 + [0]))
    assert other.test == "fisher"
    assert other.alike


def test_equals_of_the_best_are_best_and_nothing_is_best_of_equals():
    a, b, c = marks_of(FakeRow("A", [0.5]), FakeRow("B", [0.5]), FakeRow("C", [0.4], [0, 1]))
    assert a.best
    assert b.best
    assert not c.best
    assert marks_of(FakeRow("A", [0.5]), FakeRow("B", [0.5])) == [Mark(), Mark()]
    assert marks_of(FakeRow("A", [0.5]), FakeRow("B", [])) == [Mark(), Mark()]


def test_generators_compete_under_one_search_and_searches_where_there_is_one_generator():
    rows = [FakeRow("A", [0.1], [0, 1]), FakeRow("B", [0.2], [0, 1]), FakeRow("A", [0.9], [1, 1], search="GA")]
    assert [mark.best for mark in marks_of(*rows)] == [False, True, False]
    rows = [FakeRow("A", [0.1], [0, 1]), FakeRow("A", [0.9], [1, 1], search="GA")]
    assert [mark.best for mark in marks_of(*rows)] == [False, True]


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tables(tmp_path):
    """Two generators with odd names, one of them better, and a cell that was refused."""
    rows = [FakeRow("A & <b>|_", [0.9], [1] * 9 + [0]), FakeRow("B", [0.8], [1] * 8 + [0] * 2)]
    grid = small_grid(tmp_path, ("<script>",))
    states = [State(grid.cells[0], "refused", "it <is> impossible")]
    facts = {"d/g": Facts("abc", "CVAE", 1024, 12.5, 0.25)}
    return Tables(grid, states, rows, compare(rows), facts)


def test_markdown(tables):
    text = write.markdown(tables, "lsgen bench --config my.yaml")
    assert "    lsgen bench --config my.yaml" in text
    assert "| d | g | CVAE | 1,024 | 12.5 | 0.25 |" in text
    assert r"A &amp; &lt;b&gt;\|_ |" in text
    assert "| **90.0** |" in text
    assert "| <u>80.0</u> |" in text
    assert "Fisher's exact test" in text
    assert "No oracle has judged validity" in text
    assert "- refused: d, s, g, &lt;script&gt;: it &lt;is&gt; impossible" in text


def test_latex(tables):
    text = write.latex(tables)
    assert r"A \& \textless{}b\textgreater{}\textbar{}\_ & " in text
    assert r"\textbf{90.0}" in text
    assert r"\underline{80.0}" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in rows} == {5, 13}


def test_csv(tables):
    (best, other) = csv.DictReader(io.StringIO(write.as_csv(write.table_records(tables))))
    assert best["generator"] == "A & <b>|_"
    assert float(best["failure_rate"]) == 0.9
    assert best["failure_rate_p"] == best["valid"] == ""
    assert float(other["failure_rate_p"]) == pytest.approx(stats.fisher_exact([[9, 1], [8, 2]]).pvalue)
    (cell,) = csv.DictReader(io.StringIO(write.as_csv(write.cell_records(tables))))
    assert (cell["state"], cell["reason"]) == ("refused", "it <is> impossible")


def test_the_page_escapes_everything_and_loads_nothing(tables):
    report = tables.grid.cells[0].report
    report.parent.mkdir()
    report.touch()
    text = write.page(tables, "lsgen bench --config '<my>.yaml'")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "it &lt;is&gt; impossible" in text
    assert "&lt;my&gt;.yaml" in text
    assert "<b>90.0</b>" in text
    assert "<u>80.0</u>" in text
    assert 'href="reports/d-s-g-script-0.html"' in text
    assert "http://" not in text
    assert "https://" not in text


def test_the_terminal_shows_every_digit_however_narrow_it_is(tables, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    write.show(tables)
    said = capsys.readouterr().out
    assert "A & <b>|_" in said
    assert "90.0" in said
    assert "…" not in said
    assert "refused: d, s, g, <script>: it <is> impossible" in said


def test_the_table_goes_to_wandb_in_the_group_of_the_searches(tables, monkeypatch):
    seen = {}

    class Logger:
        def __init__(self, **settings):
            seen.update(settings)
            self.experiment = SimpleNamespace(finish=lambda: seen.update(finished=True))

    class Sink:
        def __init__(self, logger):
            pass

        def begin(self, labels, folder):
            seen.update(folder=folder)

        def table(self, name, table, step):
            seen.update(frame=table.frame)

    monkeypatch.setattr("lightning.pytorch.loggers.WandbLogger", Logger)
    monkeypatch.setattr("lsgen.loggers.sink_of", Sink)
    write.log_to_wandb(tables)
    assert seen["group"] == "small"
    assert seen["folder"] == tables.grid.out
    assert seen["frame"]["failure_rate"].tolist() == [0.9, 0.8]
    assert seen["finished"]


def test_time_left_follows_the_pace_of_what_is_done(tmp_path, monkeypatch):
    from lsgen.bench import run

    grid = small_grid(tmp_path, ("a", "b", "c"))
    outlooks = {cell.name: Outlook(seconds=1000.0, overhead=10.0) for cell in grid.cells}
    outlooks[grid.cells[2].name] = Outlook(refused="no")
    job = run.Job(grid, outlooks, "now")
    monkeypatch.setattr(run, "is_finished", lambda cell, outlook: False)
    assert run.left(job) == "2 cells left, about 34 min"
    monkeypatch.setattr(run, "is_finished", lambda cell, outlook: cell.search == "a")
    monkeypatch.setattr(run, "load_suite", lambda folder: SimpleNamespace(summary={"seconds": 50.0}))
    assert run.left(job) == "1 cell left, about 60 s"
    monkeypatch.setattr(run, "is_finished", lambda cell, outlook: True)
    assert run.left(job) == "no cell left"


def test_a_training_that_fails_does_not_keep_the_others(tmp_path, monkeypatch):
    from lsgen.bench import run

    def fit_once(config, folder, *flags):
        if folder.name == "bad":
            raise RuntimeError("no memory")
        return f"lsgen fit --config {config}"

    monkeypatch.setattr(run, "fit_once", fit_once)
    models = [
        Model("generator", "d", name, tmp_path / name / "best.ckpt", Path("x.yaml")) for name in ("bad", "good", "idle")
    ]
    sut = Model("sut", "d", "s")
    cells = [Cell("d", sut, model, "PGD", 0, Path("x.yaml"), {}, tmp_path) for model in models]
    job = run.Job(Grid("g", tmp_path, [sut, *models], cells), {c.name: Outlook() for c in cells}, "now")
    job.outlooks[cells[2].name] = Outlook(refused="no")
    assert list(run.train(job)) == ["d/good"]  # and what no cell needs is not trained
    assert failure(tmp_path, "d/bad") == {"reason": "RuntimeError: no memory", "run": "now"}
    with pytest.raises(RuntimeError, match="d/bad could not be trained: RuntimeError: no memory"):
        run._check_models(job, cells[0])


def test_a_training_of_another_process_is_waited_for(tmp_path, monkeypatch, capsys):
    from lsgen.bench import run

    model = Model("generator", "d", "g", tmp_path / "g/best.ckpt", Path("x.yaml"))
    cell = Cell("d", Model("sut", "d", "s"), model, "PGD", 0, Path("x.yaml"), {}, tmp_path)
    job = run.Job(Grid("g", tmp_path, [model], [cell]), {cell.name: Outlook()}, "now")
    monkeypatch.setattr(run, "fit_once", lambda *args: None)  # trained by then
    with claim(tmp_path / "g/.claim") as mine:
        assert mine
        naps = iter([None, None, None])

        def nap(seconds):
            if next(naps, "over") == "over":
                raise TimeoutError

        monkeypatch.setattr(run.time, "sleep", nap)
        with pytest.raises(TimeoutError):
            run.train(job)
    assert capsys.readouterr().out == "waiting for another process, which trains d/g\n"
    assert run.train(job) == {}
