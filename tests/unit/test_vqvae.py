"""The VQ-VAE with two discriminators: its quantiser and losses by hand, its two phases through a Trainer."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.functional.image import structural_similarity_index_measure

from lsgen import checkpoints, generators
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators.vqvae import (
    VQVAE,
    Codebook,
    Perplexity,
    partners,
    random_vectors,
)
from lsgen.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:pretrain_epochs")  # many fits here stop before the second phase
SMALL = {"embedding_dim": 4, "num_codes": 8, "width": 4, "discriminator_width": 2}
MODELS = {
    "28": lambda: VQVAE(**SMALL),
    "32 rgb": lambda: VQVAE(image_shape=(3, 32, 32), num_classes=4, **SMALL),
    "not square": lambda: VQVAE(image_shape=(1, 12, 20), **SMALL),
    "no codebook": lambda: VQVAE(quantiser="none", **SMALL),
    "no discriminators": lambda: VQVAE(discriminators=False, **SMALL),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def vqvae(request) -> VQVAE:
    torch.manual_seed(0)
    return request.param().eval()


@pytest.fixture(scope="module")  # reading them takes longer than training on them
def data() -> ImageData:
    return ImageData(name="mnist5k", limit_per_class=6, batch_size=20)


def trainer(folder, **more) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    return Trainer(default_root_dir=folder, num_sanity_val_steps=0, **{**quiet, **more})


def attached(model: VQVAE, folder) -> VQVAE:
    """The model, as if a Trainer was running it."""
    model.trainer = trainer(folder)
    return model


def latents(model: VQVAE, n: int = 6):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, *model.latent_shape, generator=rng), torch.arange(n) % model.num_classes


def images(model: VQVAE, n: int = 6):
    return torch.rand(n, *model.image_shape, generator=torch.Generator().manual_seed(0))


# what every generator must hold to


@torch.no_grad()
def test_decodes_to_images_and_encodes_to_latents(vqvae):
    z, y = latents(vqvae)
    x = vqvae.decode(z, y)
    assert x.shape == (6, *vqvae.image_shape)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert vqvae.encode(x, y).shape == z.shape
    assert z.shape[1:] == vqvae.latent.shape == (4, vqvae.image_shape[1] // 4, vqvae.image_shape[2] // 4)
    assert vqvae.latent.bounds is None
    assert (vqvae.conditional, vqvae.encodes, vqvae.has_prior) == (False, True, vqvae.codebook is None)


def test_gradients_reach_every_latent(vqvae):
    z, y = latents(vqvae)
    z.requires_grad_()
    vqvae.decode(z, y).sum().backward()
    assert bool((z.grad.abs().flatten(1).sum(1) > 0).all())


def test_is_independent_of_the_batch_and_of_labels(vqvae):
    z, y = latents(vqvae)
    torch.testing.assert_close(vqvae.decode(z, y)[2:3], vqvae.decode(z[2:3], y[2:3]), atol=1e-6, rtol=1e-5)
    assert torch.equal(vqvae.decode(z, y), vqvae.decode(z, y.flip(0)))


@torch.no_grad()
def test_decode_calls_each_stage_once_and_hooks_see_and_change_its_output(vqvae):
    z, y = latents(vqvae)
    hidden, seen = z, []
    for stage in vqvae.stages:
        hidden = stage(hidden)
    plain = vqvae.decode(z, y)
    assert torch.equal(hidden.sigmoid(), plain)
    for stage in vqvae.stages:
        stage.register_forward_hook(lambda module, inputs, output: seen.append(module) or output + 0.1)
    assert not torch.equal(vqvae.decode(z, y), plain)
    assert seen == vqvae.stages


def test_survives_a_checkpoint(vqvae, tmp_path):
    vqvae.latent_bounds.copy_(torch.tensor([-3.0, 4.0]))
    about = {"role": vqvae.role, **checkpoints.describe(vqvae)}
    torch.save({"state_dict": vqvae.state_dict(), checkpoints.KEY: about}, tmp_path / "g.ckpt")
    again = generators.pretrained(tmp_path / "g.ckpt")
    assert torch.equal(again.decode(*latents(vqvae)), vqvae.decode(*latents(vqvae)))
    assert again.latent == vqvae.latent
    assert checkpoints.describe(again) == checkpoints.describe(vqvae)
    assert checkpoints.weights_sha256(again) == checkpoints.weights_sha256(vqvae)


def test_only_the_plain_vae_has_a_prior():
    y, rng = torch.zeros(2, dtype=torch.long), torch.Generator()
    assert VQVAE(**SMALL).latent.kind == "codes"
    with pytest.raises(InputError, match="take seeds from data with DataSeeds"):
        VQVAE(**SMALL).sample_prior(2, y, rng)
    plain = VQVAE(quantiser="none", **SMALL)
    assert plain.latent.kind == "normal"
    assert plain.sample_prior(2, y, rng).shape == (2, 4, 7, 7)


# the codebook


def test_takes_the_nearest_code_at_each_position():
    torch.manual_seed(0)
    book, z = Codebook(11, 3, 5), torch.randn(2, 3, 4, 5)
    quantised, index = book(z), book.nearest(z)
    for n, row, column in np.ndindex(2, 4, 5):
        distance = [float((z[n, :, row, column] - code).norm()) for code in book.codes.detach()]
        nearest = int(np.argmin(distance))
        assert int(index[n, row, column]) == nearest
        assert torch.equal(quantised[n, :, row, column], book.codes[nearest])  # to the last bit


def test_gradients_pass_the_quantiser_unchanged():
    book, z, weight = Codebook(11, 3, 5), torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(2, 3, 4, 5)
    (book(z) * weight).sum().backward()
    assert torch.equal(z.grad, weight)
    assert book.codes.grad is None


@torch.no_grad()
def test_latents_with_the_same_codes_are_the_same_image():
    torch.manual_seed(0)
    vqvae, (z, y) = VQVAE(**SMALL).eval(), latents(VQVAE(**SMALL))
    image = vqvae.decode(z, y)
    assert torch.equal(vqvae.decode(vqvae.codebook(z), y), image)
    assert torch.equal(vqvae.decode(z + 1e-6, y), image)
    assert not torch.equal(vqvae.decode(z + 1, y), image)


def test_codes_unused_over_the_window_are_moved_onto_encoder_outputs():
    book = Codebook(4, 2, 3)
    assert book.dead().all()  # before training
    book.revive(torch.arange(8.0).view(4, 2))
    assert not book.dead().any()
    for used in ([9, 1, 0, 0], [1, 0, 0, 0], [3, 0, 1, 0]):  # 1 is idle for two steps, 3 for three
        assert not book.dead().any()
        book.count(torch.tensor(used))
    assert book.idle.tolist() == [0, 2, 0, 3]
    assert book.dead().tolist() == [False, False, False, True]
    z = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]).T.view(1, 2, 1, 2)
    book.revive(random_vectors(z, 1))
    assert book.codes[:3].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert book.codes[3].tolist() in ([-1, -2], [-3, -4])
    assert book.idle.tolist() == [0, 2, 0, 0]


def test_random_vectors_repeat_only_when_they_must():
    z = torch.arange(12.0).view(2, 2, 1, 3)  # vectors (0, 3), (1, 4), (2, 5), (6, 9), (7, 10), (8, 11)
    rows = random_vectors(z, 6).tolist()
    assert sorted(rows) == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]
    assert len({tuple(r) for r in random_vectors(z, 4).tolist()}) == 4
    assert random_vectors(z, 15).shape == (15, 2)


def test_the_first_batch_places_all_codes(tmp_path):
    vqvae = attached(VQVAE(**SMALL), tmp_path)
    z = vqvae._embed(images(vqvae))[0].detach()
    distance = torch.cdist(vqvae.codebook.codes.detach(), z.movedim(1, -1).flatten(0, 2))
    assert float(distance.amin(dim=1).max()) < 1e-3
    assert not vqvae.codebook.dead().any()


def test_perplexity_is_over_all_batches():
    metric, uses = Perplexity(5), torch.tensor([[9, 1, 0, 3, 2], [0, 4, 0, 1, 0]])
    for row in uses:
        metric.update(row)
    assert float(metric.compute()) == pytest.approx(math.exp(entropy(uses.sum(0))))
    metric.reset()
    metric.update(torch.full((5,), 7))
    assert float(metric.compute()) == pytest.approx(5)


# losses


def test_terms_of_equation_4_by_hand(tmp_path):
    torch.manual_seed(0)
    vqvae = attached(VQVAE(**SMALL, alpha=0.3, beta=0.6), tmp_path)
    x = images(vqvae)
    vqvae._embed(x)
    nn.init.normal_(vqvae.codebook.codes)
    z, hidden, terms = vqvae._embed(x)
    codes = vqvae.codebook(z)
    assert torch.equal(hidden, codes)
    squares = sum(float((z[n] - codes[n]).detach().square().sum()) for n in range(6)) / 6
    assert terms["codebook"].item() == pytest.approx(0.3 * squares, rel=1e-5)
    assert terms["commitment"].item() == pytest.approx(0.6 * squares, rel=1e-5)


def test_gradients_of_equation_4_go_where_the_paper_sends_them(tmp_path):
    vqvae = attached(VQVAE(**SMALL), tmp_path)
    _, hidden, terms = vqvae._embed(images(vqvae))
    terms["reconstruction"] = vqvae._pixels(hidden).sum()
    to = {"encoder": vqvae.encoder[0].weight, "codes": vqvae.codebook.codes, "decoder": vqvae.decoder[0][0].weight}
    reached = {
        term: {
            name
            for name, p in to.items()
            if torch.autograd.grad(value, p, retain_graph=True, allow_unused=True)[0] is not None
        }
        for term, value in terms.items()
    }
    assert reached == {"codebook": {"encoder"}, "commitment": {"codes"}, "reconstruction": {"encoder", "decoder"}}


def test_without_codebook_the_decoder_first_sees_little_noise():
    _, log_var = VQVAE(**SMALL, quantiser="none")._posterior(torch.rand(3, 1, 28, 28))
    assert float(log_var.exp().sqrt().max()) < 0.2


def test_without_codebook_a_kl_term_stands_in(tmp_path):
    torch.manual_seed(0)
    vqvae = attached(VQVAE(**SMALL, quantiser="none", kl_weight=0.5), tmp_path)
    x = images(vqvae)
    z, hidden, terms = vqvae._embed(x)
    mean, log_var = vqvae.encoder(x).chunk(2, dim=1)
    kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum() / len(x)
    assert set(terms) == {"kl"}
    torch.testing.assert_close(terms["kl"], 0.5 * kl)
    assert torch.equal(z, mean)
    deviation = ((hidden - mean) / (0.5 * log_var).exp()).detach()
    assert float(deviation.mean()) == pytest.approx(0, abs=0.1)
    assert float(deviation.std()) == pytest.approx(1, abs=0.1)


@torch.no_grad()
def test_adversarial_losses_by_hand_each_in_its_own_space():
    vqvae = VQVAE(**SMALL, adversarial_weight=0.2)
    x, fake, (z, _) = images(vqvae), 1 - images(vqvae), latents(vqvae)
    judging, fooling = vqvae._judging(x, fake, z, -z), vqvae._fooling(fake, -z)
    for name, judge, real, made in (
        ("latent", vqvae.latent_discriminator, z, -z),
        ("image", vqvae.image_discriminator, x, fake),
    ):
        p_real, p_made = (judge(given).double().sigmoid() for given in (real, made))
        expected = -(p_real.log().mean() + (1 - p_made).log().mean())
        assert float(judging[f"{name}_discriminator"]) == pytest.approx(float(expected), rel=1e-5)
        assert float(fooling[f"{name}_generator"]) == pytest.approx(-0.2 * float(p_made.log().mean()), rel=1e-5)


def test_discriminators_have_the_published_layers():
    vqvae = VQVAE(**SMALL)
    kinds = [
        [type(m) for m in d if isinstance(m, (nn.Linear, nn.Conv2d))]
        for d in (vqvae.latent_discriminator, vqvae.image_discriminator)
    ]
    assert kinds == [[nn.Linear] * 3, [nn.Conv2d] * 5 + [nn.Linear] * 2]


def test_partners_are_of_other_classes_and_all_of_them():
    y = torch.tensor([0, 0, 1, 2, 2])
    seen = torch.stack([partners(y) for _ in range(200)])
    for i in range(5):
        assert set(seen[:, i].tolist()) == {j for j in range(5) if y[j] != y[i]}
    assert torch.equal(partners(y, torch.Generator().manual_seed(1)), partners(y, torch.Generator().manual_seed(1)))
    assert partners(torch.zeros(3)).shape == (3,)  # no other class: anyone


# training


class Watched(VQVAE):
    """Keeps what was trained when, and how fast."""

    def _step(self, optimizer, terms, name):
        self.__dict__.setdefault("steps", []).append(
            (self.current_epoch, name, optimizer.param_groups[0]["lr"], set(terms))
        )
        super()._step(optimizer, terms, name)


def run(folder, data, *, epochs, resume=None, **more) -> Watched:
    torch.manual_seed(0)
    model = Watched(
        **{**SMALL, "lr": 0.01, "lr_discriminator": 0.02, "lr_decay_epochs": 1, "pretrain_epochs": 2, **more}
    )
    trainer(folder, max_epochs=epochs, limit_train_batches=1).fit(model, datamodule=data, ckpt_path=resume)
    return model


def trained(model: Watched) -> list[tuple[int, str, float]]:
    return [(epoch, name, round(lr, 9)) for epoch, name, lr, _ in model.steps]


PHASES = [
    (0, "loss", 0.01),
    (1, "loss", 0.001),
    (2, "discriminator_loss", 0.02),
    (2, "loss", 0.01),
    (3, "discriminator_loss", 0.002),
    (3, "loss", 0.001),
]


def test_one_fit_runs_both_phases_and_resumes_in_the_right_one(data, tmp_path):
    whole = run(tmp_path / "whole", data, epochs=4)
    assert trained(whole) == PHASES
    equation4 = {"reconstruction", "codebook", "commitment"}
    assert [terms for *_, terms in whole.steps[1:4]] == [
        equation4,
        {"latent_discriminator", "image_discriminator"},
        equation4 | {"latent_generator", "image_generator"},
    ]
    for stop in (1, 3):  # in the first phase, and in the second
        folder = tmp_path / f"stopped{stop}"
        first = run(folder, data, epochs=stop)
        second = run(folder, data, epochs=4, resume=folder / "last.ckpt")
        assert trained(first) + trained(second) == PHASES


def test_each_phase_trains_its_own_networks(data, tmp_path):
    parts = {"encoder", "decoder", "codebook", "latent_discriminator", "image_discriminator"}
    for epochs, still in ((1, {"latent_discriminator", "image_discriminator"}), (2, set())):
        torch.manual_seed(0)
        start = Watched(**SMALL).state_dict()
        end = run(tmp_path / str(epochs), data, epochs=epochs, pretrain_epochs=1).state_dict()
        changed = {key.split(".")[0] for key in start if not torch.equal(start[key], end[key])}
        assert changed - {"latent_bounds"} == parts - still


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"discriminators": False}, [{"reconstruction", "codebook", "commitment"}] * 2),
        (
            {"quantiser": "none", "pretrain_epochs": 1},
            [
                {"reconstruction", "kl"},
                {"latent_discriminator", "image_discriminator"},
                {"reconstruction", "kl", "latent_generator", "image_generator"},
            ],
        ),
    ],
)
def test_ablations_train_and_say_so_in_the_checkpoint(more, wanted, data, tmp_path):
    model = run(tmp_path, data, epochs=2, gradient_clip=1.0, **more)
    assert [terms for *_, terms in model.steps] == wanted
    again = generators.pretrained(tmp_path / "last.ckpt")
    assert {name: getattr(again, name) for name in more} == more
    assert again.interpolation == 0.1


def test_checkpoint_opens_with_bounds_and_gives_the_same_images(data, tmp_path):
    model = run(tmp_path, data, epochs=3, interpolation=0.3)
    again = generators.pretrained(tmp_path / "last.ckpt")
    x, y = data["train"].spread(1000)
    z = again.encode(x.float() / 255, y).detach()
    assert again.latent.bounds == pytest.approx((float(z.min()), float(z.max())), rel=1e-4)
    assert torch.equal(again.decode(z, y), model.eval().decode(z, y))
    assert again.interpolation == 0.3
    assert int(again.codebook.idle.max()) <= 3  # steps so far


@torch.no_grad()
def test_what_is_logged_in_validation_and_test(data, tmp_path):
    torch.manual_seed(0)
    vqvae = VQVAE(**SMALL).eval()
    x, y = images(vqvae, 8), torch.tensor([0, 1, 1, 1, 2, 2, 3, 0])
    loader = DataLoader(dataset=TensorDataset(x, y), batch_size=8)
    vqvae.codebook.revive(random_vectors(vqvae.encode(x, y), 8))
    (val,), (test,) = (getattr(trainer(tmp_path), step)(vqvae, loader, verbose=False) for step in ("validate", "test"))
    assert {k.removeprefix("test/"): v for k, v in test.items()} == {k.removeprefix("val/"): v for k, v in val.items()}

    z = vqvae.encode(x, y)
    other = partners(y, torch.Generator().manual_seed(0))
    rebuilt, mixed = vqvae.decode(z, y), vqvae.decode(0.9 * z + 0.1 * z[other], y)
    errors = [float((image - x).square().mean()) for image in (rebuilt, mixed)]
    similar = [float(structural_similarity_index_measure(image, x, data_range=1.0)) for image in (rebuilt, mixed)]
    shares = vqvae.codebook.nearest(z).flatten().bincount(minlength=8)
    wanted = {"loss": sum(errors), "reconstruction": errors[0], "ssim": similar[0], "interpolation_ssim": similar[1]}
    assert val == pytest.approx(
        {f"val/{k}": v for k, v in wanted.items()} | {"val/perplexity": math.exp(entropy(shares))}, rel=1e-4
    )


def test_mixtures_within_a_class_do_not_count_and_small_images_have_no_ssim(tmp_path):
    torch.manual_seed(0)
    vqvae = VQVAE(**SMALL).eval()
    x, y = images(vqvae, 8), torch.tensor([0] * 4 + [0, 0, 0, 1])
    (values,) = trainer(tmp_path).validate(vqvae, DataLoader(dataset=TensorDataset(x, y), batch_size=4), verbose=False)
    assert vqvae.interpolation_ssim.weight == 0  # reset at the end
    x, y = x[4:], y[4:]  # in the first batch there is no other class
    other = partners(y, torch.Generator().manual_seed(1))
    assert bool((y[other] != y).all())
    with torch.no_grad():
        z = vqvae.encode(x, y)
        mixed = vqvae.decode(z.lerp(z[other], 0.1), y)
    similar = float(structural_similarity_index_measure(mixed, x, data_range=1.0))
    assert values["val/interpolation_ssim"] == pytest.approx(similar, rel=1e-4)
    tiny = VQVAE(image_shape=(1, 8, 8), **SMALL).eval()
    loader = DataLoader(dataset=TensorDataset(images(tiny), torch.arange(6)), batch_size=4)
    (values,) = trainer(tmp_path).validate(tiny, loader, verbose=False)
    assert set(values) == {"val/loss", "val/reconstruction", "val/perplexity"}


def test_learns_to_rebuild_squares(tmp_path):
    torch.manual_seed(0)
    place = torch.randint(0, 9, (256, 2))
    x = torch.zeros(256, 1, 12, 12)
    for image, (row, column) in zip(x, place, strict=True):
        image[0, row : row + 4, column : column + 4] = 1
    loader = DataLoader(dataset=TensorDataset(x, place[:, 0] // 3), batch_size=16, shuffle=True)
    vqvae = VQVAE(
        image_shape=(1, 12, 12), num_classes=3, embedding_dim=8, num_codes=32, width=16, pretrain_epochs=6, lr=3e-3
    )
    run = trainer(tmp_path, max_epochs=8, enable_checkpointing=False)
    run.fit(vqvae, loader, DataLoader(dataset=TensorDataset(x, place[:, 0] // 3), batch_size=64))
    values = run.callback_metrics
    assert float(values["val/reconstruction"]) < 0.3 * float(x.var())
    assert float(values["val/perplexity"]) > 6


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(data, tmp_path):
    model = run(tmp_path, data, epochs=1)
    before = (tmp_path / "last.ckpt").read_bytes()
    nn.init.constant_(model.decoder[-1].bias, math.nan)
    kept = model.encoder[0].weight.clone()
    with pytest.raises(RuntimeError, match=r"train/loss is nan in epoch 0, step 0") as error:
        trainer(tmp_path, max_epochs=3).fit(model, datamodule=data)
    assert not isinstance(error.value, InputError)
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert torch.equal(model.encoder[0].weight, kept)


def test_several_processes_may_train_one_part_at_a_time(data, tmp_path):
    for discriminators, wanted in ((True, {"find_unused_parameters": True}), (False, {})):
        vqvae = VQVAE(**SMALL, discriminators=discriminators)
        many = trainer(tmp_path, strategy="ddp", devices=2)
        many.datamodule, vqvae.trainer = data, many
        vqvae.setup("test")
        assert many.strategy._ddp_kwargs == wanted


def test_warns_when_no_epoch_is_left_for_the_second_phase(data, tmp_path):
    vqvae = attached(VQVAE(**SMALL, pretrain_epochs=3), tmp_path)
    vqvae.trainer.fit_loop.max_epochs = 3
    with pytest.warns(UserWarning, match=r"pretrain_epochs 3 leaves none of the 3 epochs"):
        vqvae.setup("fit")


# wrong input


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"quantiser": "fsq"}, "quantiser must be one of codebook, none, got 'fsq'"),
        ({"image_shape": (1, 30, 28)}, r"cannot reach images of \(1, 30, 28\).* multiples of 4"),
        ({"image_shape": (0, 28, 28)}, "cannot reach images"),
        ({"embedding_dim": 0}, "embedding_dim must be at least 1, got 0"),
        ({"num_codes": 1}, "num_codes must be at least 2, got 1"),
        ({"interpolation": 1.5}, "interpolation must be between 0 and 1, got 1.5"),
        ({"interpolation": math.nan}, "interpolation"),
        ({"pretrain_epochs": -1}, "pretrain_epochs must be at least 0"),
        ({"alpha": -0.1}, "alpha"),
        ({"beta": math.inf}, "beta"),
        ({"revive_after": 0}, "revive_after"),
        ({"lr_decay_epochs": 0}, "lr_decay_epochs"),
        ({"lr": 0.0}, "lr must be above 0 and finite, got 0.0"),
        ({"lr_discriminator": math.inf}, "lr_discriminator"),
        ({"gradient_clip": 0.0}, "gradient_clip must be above 0"),
    ],
)
def test_refuses_what_it_cannot_build(bad, says):
    with pytest.raises(InputError, match=says):
        VQVAE(**{**SMALL, **bad})


def test_refuses_data_of_another_shape(data, tmp_path):
    with pytest.raises(InputError, match="32, 32"):
        trainer(tmp_path, max_epochs=1).fit(VQVAE(image_shape=(1, 32, 32), **SMALL), datamodule=data)
