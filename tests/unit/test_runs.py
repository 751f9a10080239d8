import errno

import pytest

from lsgen import checkpoints, runs
from lsgen.errors import InputError
from lsgen.messages import explain


def test_a_training_without_an_end_is_refused(tmp_path, monkeypatch):
    config = tmp_path / "endless.yaml"
    config.write_text("model: {class_path: VAE}\n", encoding="utf-8")
    monkeypatch.setattr(checkpoints, "read", lambda file: {"epoch": 0})
    with pytest.raises(InputError, match=r"endless\.yaml has no trainer\.max_epochs"):
        runs.fit_once(config, tmp_path)


@pytest.mark.parametrize(("epoch", "goes_on"), [(0, True), (2, False)])
def test_a_stopped_training_goes_on_and_a_finished_one_is_left(tmp_path, monkeypatch, epoch, goes_on):
    config = tmp_path / "vae.yaml"
    config.write_text("trainer: {max_epochs: 3}\n", encoding="utf-8")
    monkeypatch.setattr(checkpoints, "read", lambda file: {"epoch": epoch})
    monkeypatch.setattr(runs, "lsgen", lambda *args: " ".join(args))
    command = runs.fit_once(config, tmp_path)
    assert command == (f"fit --config {config} --ckpt_path {tmp_path / 'last.ckpt'}" if goes_on else None)


def test_a_checkpoint_that_was_trained_elsewhere_is_not_trained_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "lsgen", lambda *args: pytest.fail("trained"))
    (tmp_path / "best.ckpt").touch()
    assert runs.fit_once(tmp_path / "any.yaml", tmp_path) is None
    assert "already trained" in capsys.readouterr().out


def test_what_goes_wrong_in_a_first_training_is_told_as_it_is(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "lsgen", full)
    with pytest.raises(OSError, match="No space left") as error:
        runs.fit_once(tmp_path / "c.yaml", tmp_path)
    assert explain(error.value) == (1, "No space left on device")
