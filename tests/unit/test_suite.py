import errno
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError

import lsgen.suite
from lsgen import load_suite
from lsgen.errors import InputError
from lsgen.search.cases import Cases
from lsgen.suite import SCHEMA, Suite, lock

MANIFEST = {"identity": "a" * 64, "blocks": 3, "num_classes": 4, "stopped_by": None}
REQUIRED = ("id", "seed_id", "label", "seed_predicted", "predicted", "iterations", "queries", "backward_queries")


def cases(block: int, n: int = 5) -> Cases:
    ids = torch.arange(n) + block * n
    columns = dict.fromkeys(REQUIRED, ids % 4) | {"id": ids, "seed_id": ids}
    columns |= {name: torch.rand(n) for name in ("seed_p_true", "p_true", "boundary_gap")}
    columns |= {name: torch.ones(n, dtype=torch.bool) for name in ("viable", "failed", "success", "retired")}
    arrays = {
        "seed_latent": torch.randn(n, 3),
        "latent": torch.full((n, 3), float(block)),
        "seed_image": torch.zeros(n, 1, 2, 2, dtype=torch.uint8),
        "image": torch.full((n, 1, 2, 2), block, dtype=torch.uint8),
        "logits": torch.randn(n, 4),
    }
    return Cases(block, columns, arrays, seconds=0.5)


@pytest.fixture
def suite(tmp_path) -> Suite:
    suite = Suite(tmp_path / "s")
    os.close(suite.open(MANIFEST, "model: {}\n"))
    return suite


def test_blocks_in_any_order_are_joined_in_theirs(suite):
    for block in (2, 0, 1):
        suite.write(cases(block))
    suite.finish()
    loaded = load_suite(suite.path)
    assert loaded.finished
    assert loaded.table["id"].tolist() == list(range(15))
    assert loaded.images[:, 0, 0, 0].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert loaded.latents.dtype == np.float32
    assert loaded.summary["n_cases"] == 15
    assert loaded.summary["seconds"] == 1.5


def test_rows_are_taken_in_any_order(suite):
    for block in range(3):
        suite.write(cases(block))
    suite.finish()
    rows = np.array([14, 0, 6, 13, 0])
    for name in ("image", "latent", "logits"):
        assert np.array_equal(suite.take(name, rows), suite.array(name)[rows])
    assert suite.take("image", np.zeros(0, int)).shape == (0, 1, 2, 2)
    assert [len(piece) for piece in suite.pieces("image", np.array([0, 1, 12]))] == [2, 0, 1]


def test_failures_are_those_of_viable_seeds(suite):
    assert suite.failures.tolist() == []
    for block in range(3):
        some = cases(block)
        some.columns["failed"][:2], some.columns["viable"][1:4] = False, False
        suite.write(some)
    suite.finish()
    assert suite.failures.tolist() == [4, 9, 14]
    assert suite.image_shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("names", "known"), [(["a", 2, "\ud800", "d"], ["a", "2", "?", "d"]), (["a"], None), (None, None)]
)
def test_class_names_are_one_for_each_class_or_none(suite, names, known):
    suite.update_manifest(data={"class_names": names})
    assert suite.class_names == known


def test_files_are_plain_and_have_every_column_of_the_contract(suite):
    for block in range(3):
        suite.write(cases(block))
    suite.finish()
    table = pq.read_table(suite.path / "cases.parquet")
    assert table.schema.names == SCHEMA.names
    assert table.column("target").null_count == 15
    assert (suite.path / "config.yaml").read_text() == "model: {}\n"
    assert sorted(p.name for p in (suite.path / "parts").iterdir()) == [f"block-0000{i}.parquet" for i in range(3)]


def test_an_unfinished_suite_can_be_read(suite):
    suite.write(cases(0))
    suite.write(cases(2))
    suite.finish(stopped_by="seconds")
    loaded = load_suite(suite.path)
    assert not loaded.finished
    assert loaded.manifest["stopped_by"] == "seconds"
    assert loaded.table["id"].tolist() == [*range(5), *range(10, 15)]
    assert len(loaded.images) == 10
    assert loaded.summary["n_cases"] == 10


def test_a_suite_without_a_block_has_an_empty_table(suite):
    assert len(load_suite(suite.path).table) == 0
    with pytest.raises(InputError, match="no finished block"):
        load_suite(suite.path).images  # noqa: B018


@pytest.mark.parametrize("which", ["parts", "arrays"])
@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.98])
def test_a_truncated_file_makes_its_block_not_count(suite, which, keep):
    suite.write(cases(0))
    suite.write(cases(1))
    file = next(p for p in (suite.path / which).iterdir() if "00001" in p.name)
    size = file.stat().st_size
    os.truncate(file, keep if isinstance(keep, int) else int(keep * size))
    assert Suite(suite.path).blocks == [0]


def test_failures_are_counted_in_whole_blocks(suite):
    for block in range(3):
        suite.write(cases(block))
    os.truncate(suite.path / "parts/block-00001.parquet", 10)
    (suite.path / "arrays/block-00002.safetensors").unlink()
    assert suite.count_failures() == 5
    suite.write(cases(1))
    assert suite.count_failures() == 10


def test_a_full_disk_leaves_no_half_block_and_says_so(suite, monkeypatch):
    suite.write(cases(0))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lsgen.suite.pq, "write_table", full)
    with pytest.raises(OSError, match=r"block-00001.parquet.*No space left.*run the same command again"):
        suite.write(cases(1))
    assert Suite(suite.path).blocks == [0]
    assert not list(suite.path.rglob("*.tmp"))


def test_safetensors_own_error_of_a_full_disk_is_understood(suite, monkeypatch):
    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(lsgen.suite, "save_file", full)
    with pytest.raises(OSError, match=r"block-00000.safetensors.*No space left.*run the same command again") as caught:
        suite.write(cases(0))
    assert caught.value.errno == errno.ENOSPC


@pytest.fixture
def finished(suite) -> Suite:
    for block in range(3):
        suite.write(cases(block))
    suite.finish()
    return suite


def spoil(file: Path) -> None:
    """Spoils a column of a Parquet file that nobody reads to count its rows; its end, which lists them, stays whole."""
    column = SCHEMA.names.index("p_true")
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(column)
    with file.open("r+b") as opened:
        opened.seek(min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset))
        opened.write(b"\xff" * chunk.total_compressed_size)


SPOILERS = {"deleted": Path.unlink, "truncated": lambda file: os.truncate(file, 20), "spoilt": spoil}


@pytest.mark.parametrize("lost", ["arrays/block-00001.safetensors", "parts/block-00001.parquet", "cases.parquet"])
@pytest.mark.parametrize("how", SPOILERS)
def test_a_finished_suite_that_lost_a_file_is_refused_until_the_search_restores_it(finished, lost, how):
    if how == "spoilt" and not lost.endswith(".parquet"):
        pytest.skip("safetensors have no checksum: the end of a file that was synced is trusted")
    whole = (finished.path / "cases.parquet").read_bytes()
    SPOILERS[how](finished.path / lost)
    for read in [lambda s: s.table] + [lambda s: s.images] * (lost != "cases.parquet"):
        with pytest.raises(InputError, match=r"missing or damaged.*restores it"):
            read(load_suite(finished.path))
    again = Suite(finished.path)
    os.close(again.open(MANIFEST, ""))
    assert not again.finished
    for block in {0, 1, 2} - set(again.blocks):
        again.write(cases(block))
    again.finish()
    assert again.finished
    assert len(load_suite(finished.path).table) == len(load_suite(finished.path).images) == 15
    if lost == "cases.parquet":
        assert (finished.path / "cases.parquet").read_bytes() == whole


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_a_lost_summary_is_told_and_made_anew(finished, content):
    file, whole = finished.path / "summary.json", finished.summary
    _ = file.unlink() if content is None else file.write_text(content)
    with pytest.raises(InputError, match=r"summary\.json is missing or damaged.*restores it"):
        _ = load_suite(finished.path).summary
    again = Suite(finished.path)
    os.close(again.open(MANIFEST, ""))
    again.finish()
    assert load_suite(finished.path).summary == whole


def test_a_finished_suite_is_left_as_it_is(finished):
    (finished.path / ".lock").unlink()
    before = {file: file.read_bytes() for file in finished.path.rglob("*") if file.is_file()}
    assert Suite(finished.path).open(MANIFEST, "other: 1") is None
    assert {file: file.read_bytes() for file in finished.path.rglob("*") if file.is_file()} == before


def test_leftovers_of_a_killed_process_are_cleared(suite):
    (suite.path / "parts" / ".block-00000.parquet.123.tmp").write_text("half")
    (suite.path / "config.yaml").unlink()
    os.close(Suite(suite.path).open(MANIFEST, "again: 1"))
    assert not list(suite.path.rglob("*.tmp"))
    assert (suite.path / "config.yaml").read_text() == "again: 1"


@pytest.mark.parametrize("content", ["[]", "{}", "", '{"finished": true}', "no identity", "blocks in words"])
def test_a_manifest_that_is_none_is_refused(suite, content):
    known, file = suite.manifest, suite.path / "manifest.json"
    content = {"no identity": json.dumps(known | {"identity": None})}.get(content, content)
    file.write_text({"blocks in words": json.dumps(known | {"blocks": "three"})}.get(content, content))
    with pytest.raises(InputError, match=r"manifest\.json"):
        load_suite(suite.path)


def test_one_search_at_a_time_writes_to_a_folder(suite):
    held = lock(suite.path)
    half = suite.path / "parts/.block-00000.parquet.tmp"
    half.touch()  # what the other search is writing
    with pytest.raises(InputError, match="another process"):
        Suite(suite.path).open(MANIFEST, "")
    assert half.exists()
    os.close(held)
    os.close(Suite(suite.path).open(MANIFEST, ""))
    assert not half.exists()


def test_a_file_system_without_locks_is_used_all_the_same(suite, monkeypatch):
    def missing(*args):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(lsgen.suite.fcntl, "flock", missing)
    with pytest.warns(UserWarning, match="without locks"):
        os.close(Suite(suite.path).open(MANIFEST, ""))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ELOOP])
def test_a_place_that_cannot_be_written_is_the_users_to_change(tmp_path, monkeypatch, number):
    def fails(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(InputError, match=f"{os.strerror(number)}.*choose another --out"):
        Suite(tmp_path / "s").open(MANIFEST, "")
    with pytest.raises(InputError, match="File name too long"):
        Suite(tmp_path / ("s" * 300)).open(MANIFEST, "")


def test_the_same_search_goes_on_and_another_is_refused(suite):
    suite.write(cases(0))
    os.close(Suite(suite.path).open(MANIFEST, ""))
    assert Suite(suite.path).blocks == [0]
    with pytest.raises(InputError, match="another configuration"):
        Suite(suite.path).open({**MANIFEST, "identity": "b" * 64}, "")


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not a suite"):
        Suite(tmp_path).open(MANIFEST, "")


def test_other_format_versions_are_refused(suite):
    suite.update_manifest(format_version=99)
    with pytest.raises(InputError, match="format 99"):
        load_suite(suite.path)
    with pytest.raises(InputError, match="format 99"):
        suite.open(MANIFEST, "")


def test_missing_suites_and_arrays_are_named(suite, tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json"):
        load_suite(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no array 'imgs'"):
        suite.array("imgs")
