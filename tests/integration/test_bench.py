"""``lsgen bench`` from the command line, on toys: cells, tables, failures, interruptions, several processes."""

import csv
import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import lsgen.bench.run
from lsgen import checkpoints, load_suite
from lsgen.bench.check import Inspector
from lsgen.bench.claims import claim
from lsgen.bench.folder import load_facts
from lsgen.bench.grid import read_grid
from lsgen.cli import main
from lsgen.generators import VAE
from lsgen.types import describe
from tests.toys import write_npz

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")  # toys are no classifiers
SIDE = 12
PIXELS = {
    "model.generator": "PixelSpace",
    "model.generator.image_shape": [1, SIDE, SIDE],
    "model.generator.num_classes": 2,
}
LINEAR = {"model.sut": "tests.toys.Linear", "model.sut.side": SIDE}


def save(module, file):
    torch.save({checkpoints.KEY: {"role": module.role, **describe(module)}, "state_dict": module.state_dict()}, file)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, a search and a generator's checkpoint."""
    folder = tmp_path_factory.mktemp("bench")
    write_npz(folder / "data", n=80, side=SIDE)
    parts = {
        "generator": {"class_path": "PixelSpace"},
        "sut": {"class_path": "tests.toys.Linear"},
        "searcher": {"class_path": "LatentPGD", "init_args": {"steps": 2, "step_size": 0.02, "radius": 0.1}},
        "seeds": {"class_path": "DataSeeds", "init_args": {"per_class": 10}},
        "block_size": 10,
        "eval_batch_size": 32,
    }
    search = {
        "model": {"class_path": "SearchTask", "init_args": parts},
        "data": {"class_path": "ImageData", "init_args": {"name": "npz", "path": str(folder / "data")}},
        "trainer": {"default_root_dir": str(folder / "root"), "enable_progress_bar": False},
    }
    (folder / "pgd.yaml").write_text(yaml.safe_dump(search))
    torch.manual_seed(0)
    vae = VAE(image_shape=(1, SIDE, SIDE), num_classes=2, latent_dim=2, hidden=8)
    vae.latent_bounds.copy_(torch.tensor([-2.0, 2.0]))
    save(vae, folder / "vae.ckpt")
    return folder


def grid(place, tmp_path, **changes):
    """Arguments of a bench with two generators under one search; more can be added."""
    content = {
        "out": str(tmp_path / "out"),
        "set": {"data.name": "npz"},
        "searches": {"PGD": str(place / "pgd.yaml")},
        "data": {
            "toy": {
                "suts": {"linear": {"set": LINEAR}},
                "generators": {"pixels": {"set": PIXELS}, "VAE": str(place / "vae.ckpt")},
            }
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = content
        for key in parents:
            part = part[key]
        part[last] = value
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return ["bench", f"--config={file}"]


REAL_LOOK = Inspector.look  # which some tests do without


def rows(out, name="table.csv"):
    with (out / name).open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def done(place, tmp_path_factory):
    """A finished bench: its folder, its status, and what was known beforehand."""
    folder = tmp_path_factory.mktemp("done")
    status = main(grid(place, folder))
    inspector = Inspector(known=load_facts(folder / "out"))
    outlooks = inspector.look(read_grid(folder / "toy.yaml"))
    return folder, status, outlooks, inspector.facts


@pytest.fixture
def quick(done, monkeypatch):
    """Benches of this grid that look nowhere and copy suites instead of searching; gives the names of those copied."""
    folder, _, outlooks, facts = done
    copied = []

    def look(inspector, grid):
        inspector.facts = facts
        return {cell.name: outlooks[cell.name] for cell in grid.cells}

    def search(*args):
        cell = Path(args[-1])
        copied.append(cell.name)
        shutil.copytree(folder / "out/cells" / cell.name, cell)

    monkeypatch.setattr(Inspector, "look", look)
    monkeypatch.setattr(lsgen.bench.run, "lsgen", search)
    monkeypatch.setattr(lsgen.bench.run, "make_report", lambda cell: None)
    return copied


def failing(monkeypatch, name, error):
    """From now on, one cell does not go well."""
    search = lsgen.bench.run.lsgen

    def fail(*args):
        if args[-1].endswith(name):
            raise error
        search(*args)

    monkeypatch.setattr(lsgen.bench.run, "lsgen", fail)


def test_the_table_has_what_the_suites_have(done):
    out = done[0] / "out"
    assert done[1] == 0
    table = rows(out)
    assert [(r["data"], r["sut"], r["search"], r["generator"]) for r in table] == [
        ("toy", "linear", "PGD", "pixels"),
        ("toy", "linear", "PGD", "VAE"),
    ]
    for row in table:
        suite = load_suite(out / f"cells/toy-linear-{row['generator']}-PGD-0")
        assert float(row["failure_rate"]) == suite.summary["failure_rate"]
        assert float(row["misclassified"]) == suite.summary["misclassification_rate"]
        assert float(row["seed_viability"]) == suite.summary["seed_viability"]
        assert float(row["iterations"]) == suite.summary["iterations_mean"]
        assert float(row["ssim"]) == suite.summary["ssim"]
        assert float(row["queries"]) == suite.table.loc[suite.table["viable"], "queries"].mean()
        assert row["valid"] == row["preserved"] == ""
    assert {r["generator"]: r["latent_size"] for r in table} == {"pixels": str(SIDE * SIDE), "VAE": "2"}


def test_every_form_is_written_and_reports_are_linked(done):
    out = done[0] / "out"
    page = (out / "index.html").read_text()
    assert (out / "examples.png").read_bytes().startswith(b"\x89PNG")
    assert '<img src="data:image/png;base64,' in page
    assert 'href="reports/toy-linear-VAE-PGD-0.html"' in page
    assert "PGD" in (out / "reports/toy-linear-VAE-PGD-0.html").read_text()
    assert "| toy | pixels | PixelSpace | 144 |" in (out / "table.md").read_text()
    assert r"\textbf" in (out / "table.tex").read_text()
    script = (out / "commands.sh").read_text().splitlines()
    assert len(script) == 3 + 2
    assert all(line.startswith("lsgen search --config ") for line in script[3:])


def test_a_cell_is_the_suite_of_its_command(done):
    # the look beforehand and the search itself agree on what the suite is
    for name, outlook in done[2].items():
        assert load_suite(done[0] / "out/cells" / name).manifest["identity"] == outlook.identity


def test_a_finished_bench_runs_nothing_again(done, place, quick, capsys):
    before = rows(done[0] / "out")
    assert main(grid(place, done[0])) == 0
    assert "0 cells to do; 2 finished, 0 refused" in capsys.readouterr().out
    assert quick == []
    assert rows(done[0] / "out") == before


def test_other_weights_or_settings_in_the_same_folder_are_refused(done, place, quick, monkeypatch, capsys):
    other = {name: replace(outlook, identity="0" * 64) for name, outlook in done[2].items()}
    monkeypatch.setattr(Inspector, "look", lambda inspector, grid: other)
    assert main(grid(place, done[0])) == 2
    said = capsys.readouterr().err
    assert "holds another grid: toy-linear-pixels-PGD-0 was searched with other weights, data or settings" in said


def test_a_dry_run_shows_cells_cost_and_what_is_impossible_and_writes_nothing(place, tmp_path, capsys):
    blank = {"class_path": "CVAE", "init_args": {"image_shape": [1, SIDE, SIDE], "num_classes": 2, "latent_dim": 2}}
    args = grid(
        place,
        tmp_path,
        searches__GA={"config": str(place / "pgd.yaml"), "set": {"model.searcher": "MarginGA"}},
        data__toy__suts={"box": {"set": LINEAR | {"model.sut.differentiable": False}}},
        data__toy__generators={
            "VAE": str(place / "vae.ckpt"),
            "unfit": {"set": {"model.generator": blank}},
            "gone": "no.ckpt",
        },
    )
    assert main([*args, "--dry-run", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert "1 cell to do, at most 75,240 SUT queries" in said  # 20 seeds, 250 rounds of 15 children, 2 looks
    assert "in 2 processes; 0 finished, 5 refused" in said
    assert "refused: toy, box, VAE, PGD: LatentPGD follows gradients, and the SUT is a black box" in said
    assert "refused: toy, box, unfit, GA: MarginGA takes its step from the bounds of the latent space" in said
    assert "refused: toy, box, gone, PGD: no checkpoint at no.ckpt: train it first" in said
    assert f"--model.generator.path={place}/vae.ckpt --out {tmp_path}/out/cells/toy-box-VAE-GA-0" in said
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_missing_or_broken_keeps_nobody_else_but_is_no_success(
    place, tmp_path, quick, monkeypatch, capsys
):
    monkeypatch.setattr(Inspector, "look", REAL_LOOK)
    (tmp_path / "broken.ckpt").write_bytes(b"no weights")
    generators = {"pixels": {"set": PIXELS}, "gone": "no.ckpt", "broken": str(tmp_path / "broken.ckpt")}
    assert main(grid(place, tmp_path, data__toy__generators=generators)) == 1
    assert [r["state"] for r in rows(tmp_path / "out", "cells.csv")] == ["finished", "refused", "refused"]
    said = capsys.readouterr().out
    assert "refused: toy, linear, gone, PGD: no checkpoint at no.ckpt: train it first" in said
    assert "broken.ckpt cannot be read as a checkpoint (UnpicklingError)" in " ".join(said.split())


def test_one_failure_does_not_end_the_rest_and_is_tried_again(place, tmp_path, quick, monkeypatch, capsys):
    args, out = grid(place, tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        failing(patch, "pixels-PGD-0", RuntimeError("out of luck"))
        assert main(args) == 1
    assert "failed: toy, linear, pixels, PGD, repeat 0: RuntimeError: out of luck" in capsys.readouterr().out
    assert [row["generator"] for row in rows(out)] == ["VAE"]
    assert "out of luck" in (out / "table.md").read_text()
    assert main(args) == 0
    assert quick == ["toy-linear-VAE-PGD-0", "toy-linear-pixels-PGD-0"]
    assert [row["generator"] for row in rows(out)] == ["pixels", "VAE"]
    assert "out of luck" not in (out / "table.md").read_text()


def test_an_unfinished_suite_is_no_result(done, place, tmp_path, quick, monkeypatch, capsys):
    search = lsgen.bench.run.lsgen

    def stopped(*args):
        search(*args)
        manifest = Path(args[-1]) / "manifest.json"
        content = json.loads(manifest.read_text()) | {"finished": False, "stopped_by": "max_seconds"}
        manifest.write_text(json.dumps(content))

    monkeypatch.setattr(lsgen.bench.run, "lsgen", stopped)
    assert main(grid(place, tmp_path)) == 1
    assert "unfinished, stopped by max_seconds" in capsys.readouterr().out
    assert rows(tmp_path / "out") == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(1)], ids=["before", "in Lightning"])
def test_after_ctrl_c_the_table_is_there_and_the_bench_goes_on(place, tmp_path, quick, monkeypatch, capsys, stop):
    args, out = grid(place, tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        failing(patch, "VAE-PGD-0", stop)
        assert main(args) == 1
    said = capsys.readouterr()
    assert "stopped; what was finished is kept" in said.err
    assert "open: toy, linear, VAE, PGD, repeat 0: not begun" in said.out
    assert [row["generator"] for row in rows(out)] == ["pixels"]
    assert main(args) == 0
    assert quick == ["toy-linear-pixels-PGD-0", "toy-linear-VAE-PGD-0"]
    assert len(rows(out)) == 2


def test_a_full_disk_ends_the_bench(place, tmp_path, quick, monkeypatch, capsys):
    failing(monkeypatch, "pixels-PGD-0", OSError(errno.ENOSPC, "cannot write block 0 (No space left on device)"))
    assert main(grid(place, tmp_path)) == 1
    said = capsys.readouterr()
    assert "lsgen: cannot write block 0 (No space left on device)" in said.err
    assert said.out.count("not begun") == 2
    assert quick == []


def test_a_cell_that_another_process_is_at_is_left_to_it(place, tmp_path, quick, capsys):
    with claim(tmp_path / "out/claims/toy-linear-VAE-PGD-0"):
        (tmp_path / "out/bench.json").write_text('{"cells": []}')
        assert main(grid(place, tmp_path)) == 0
    assert "running: toy, linear, VAE, PGD, repeat 0: another process is at it" in capsys.readouterr().out
    assert quick == ["toy-linear-pixels-PGD-0"]


def test_where_no_cell_can_run_the_reason_is_said(place, tmp_path, capsys):
    generators = {"pixels": {"set": PIXELS}}
    flags = {"data.name": "npz", "model.searcher.stepz": 1}
    assert main(grid(place, tmp_path, set=flags, data__toy__generators=generators)) == 2
    said = capsys.readouterr().err
    assert "no cell of" in said
    assert "stepz" in said
    assert main([*grid(place, tmp_path), "--jobs", "0"]) == 2
    assert "--jobs must be at least 1, got 0" in capsys.readouterr().err


def test_several_processes_do_each_cell_once(done, place, tmp_path, quick, capfd):
    args, out = grid(place, tmp_path), tmp_path / "out"
    assert main([*args, "--jobs", "2"]) == 0
    logs = sorted((out / "logs").iterdir())
    assert [log.stem for log in logs] == ["toy-linear-VAE-PGD-0", "toy-linear-pixels-PGD-0"]
    assert [log.read_text().count(": new") for log in logs] == [1, 1]
    assert "no cell left" in capfd.readouterr().out
    for name in done[2]:
        a, b = load_suite(out / "cells" / name), load_suite(done[0] / "out/cells" / name)
        assert a.table.equals(b.table)


def test_a_model_that_is_missing_is_trained_first_and_once(place, tmp_path, monkeypatch, capsys):
    size = {"image_shape": [1, SIDE, SIDE], "num_classes": 2, "latent_dim": 2, "hidden": 8}
    fit = {
        "model": {"class_path": "VAE", "init_args": size},
        "data": {"class_path": "ImageData", "init_args": {"name": "npz", "path": str(place / "data")}},
        "trainer": {"default_root_dir": str(tmp_path / "vae"), "max_epochs": 1, "enable_progress_bar": False},
    }
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(fit))
    model = {"config": str(tmp_path / "fit.yaml"), "fit": {"trainer.logger": False}}
    args = grid(place, tmp_path, data__toy__generators={"VAE": model})
    monkeypatch.setattr(lsgen.bench.run, "make_report", lambda cell: None)
    assert main(args) == 0
    said = capsys.readouterr().out
    assert "after training VAE" in said
    assert said.count("$ lsgen fit") == 1
    (trained,) = rows(tmp_path / "out")
    assert 0 < float(trained["train_minutes"]) < 5  # the checkpoint does not know, but the bench does
    facts = json.loads((tmp_path / "out/generators.json").read_text())["toy/VAE"]
    assert facts["weights"] == checkpoints.weights_sha256(checkpoints.load(tmp_path / "vae/best.ckpt", VAE))
    monkeypatch.setattr(lsgen.bench.run, "lsgen", None)
    assert main(args) == 0
    assert "already trained" in capsys.readouterr().out
    assert rows(tmp_path / "out")[0]["train_minutes"] == trained["train_minutes"]
