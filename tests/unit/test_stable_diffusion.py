"""StableDiffusion on a tiny pipeline with random weights, saved as diffusers saves them."""

import json
import shutil

import lightning.pytorch as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

from lsgen.checkpoints import weights_sha256
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import stable_diffusion
from lsgen.generators.stable_diffusion import StableDiffusion

pytest.importorskip("transformers")
pytest.importorskip("peft")

PROMPTS = ["a cat", "a dog", "fish"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
LENGTH = 12  # tokens
QUERY = "mid_block.attentions.0.transformer_blocks.0.attn2.to_q"  # 16 to 16 features


def tokenizer(folder):
    from transformers import CLIPTokenizer

    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(TOKENS)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(folder, model_max_length=LENGTH)


def text_encoder():
    from transformers import CLIPTextConfig, CLIPTextModel

    last = len(TOKENS) - 1
    special = {"bos_token_id": last - 1, "eos_token_id": last, "pad_token_id": last}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPTextConfig(vocab_size=len(TOKENS), max_position_embeddings=LENGTH, **sizes, **special)
    return CLIPTextModel(config)


def unet():
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )


def vae():
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(8, 16),
        latent_channels=4,
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    model.decoder.conv_out.weight.data *= 5  # so that some pixels leave [0, 1]
    return model


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory):
    """As in Stable Diffusion 1.5: PNDM by default, whose settings say nothing on clip_sample."""
    from diffusers import PNDMScheduler, StableDiffusionPipeline

    torch.manual_seed(0)
    schedule = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    pipe = StableDiffusionPipeline(
        vae=vae().eval(),
        text_encoder=text_encoder().eval(),
        tokenizer=tokenizer(tmp_path_factory.mktemp("words") / "tokenizer"),
        unet=unet().eval(),
        scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1, **schedule),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="session")
def folder(pipeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("sd")
    pipeline.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def generator(folder) -> StableDiffusion:
    return build(folder)


@pytest.fixture
def copied(folder, tmp_path):
    """A folder of one's own, to damage."""
    return shutil.copytree(folder, tmp_path / "copied")


def build(path, **more) -> StableDiffusion:
    return StableDiffusion(**{"path": str(path), "prompts": PROMPTS, "steps": 3, "guidance": 3.0, **more})


def latents(generator, n=4):
    y = torch.arange(n) % generator.num_classes
    return generator.sample_prior(n, y, torch.Generator().manual_seed(0)), y


def edit(file, **changes):
    """Other values in a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def lora(file, *, size=16, name=f"unet.{QUERY}"):
    """A file of low-rank changes of one layer."""
    rng = torch.Generator().manual_seed(0)
    down, up = torch.randn(2, size, generator=rng), torch.randn(size, 2, generator=rng)
    save_file({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, file)
    return str(file)


# --- what a generator must hold to -----------------------------------------------------------------------------------


def test_says_what_it_is(generator):
    assert generator.image_shape == (3, 16, 16)
    assert generator.num_classes == 3
    assert generator.latent.shape == (4, 8, 8)
    assert generator.latent.kind == "noise"
    assert generator.conditional
    assert not generator.encodes
    assert generator.stages == []
    assert not any(parameter.requires_grad for parameter in generator.parameters())
    assert not generator.train().training
    with pytest.raises(InputError, match="no encoder"):
        generator.encode(torch.zeros(1, 3, 16, 16), torch.zeros(1))


@torch.no_grad()
def test_decodes_to_images_in_range(generator):
    x = generator.decode(*latents(generator))
    assert x.shape == (4, 3, 16, 16)
    assert x.dtype == torch.float32
    assert (float(x.min()), float(x.max())) == (0, 1)  # the cut has something to do
    assert float(x.std()) > 0.05


@torch.no_grad()
@pytest.mark.parametrize("scheduler", ["ddim", "dpmsolver", "euler"])
def test_is_deterministic_and_independent_of_the_batch(folder, scheduler):
    generator = build(folder, scheduler=scheduler, micro_batch=2)
    z, y = latents(generator)
    x = generator.decode(z, y)
    generator.decode(z + 1, y)  # leaves nothing behind
    torch.manual_seed(1)
    assert torch.equal(generator.decode(z, y), x)
    torch.testing.assert_close(generator.decode(z[2:3], y[2:3]), x[2:3], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_an_image_is_the_same_bit_for_bit_wherever_it_stands_in_the_batch(generator):
    z, y = latents(generator)
    x = generator.decode(z, y)
    assert torch.equal(generator.decode(z.flip(0), y.flip(0)).flip(0), x)
    assert torch.equal(generator.decode(z[2:3], y[2:3]), x[2:3])


@torch.no_grad()
def test_prompts_matter(folder, generator):
    z, y = latents(generator)
    x = generator.decode(z, y)
    assert not torch.equal(generator.decode(z, (y + 1) % 3), x)
    other = build(folder, prompts=["a dog", "a cat", "fish"], negative_prompt="a bird")
    assert not torch.allclose(other.decode(z, y), x)
    torch.testing.assert_close(build(folder, prompts=PROMPTS[::-1]).decode(z, 2 - y), x)


def test_bounds_are_those_of_a_thousand_draws(generator):
    z = torch.randn(1000, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    assert generator.latent.bounds == (float(z.min()), float(z.max()))
    generator.measure_bounds(ImageData(name="mnist5k"))
    assert generator.latent.bounds == (float(z.min()), float(z.max()))


@torch.no_grad()
def test_resizes(folder, generator):
    small = build(folder, image_size=8)
    z, y = latents(generator)
    assert small.image_shape == (3, 8, 8)
    expected = torch.nn.functional.avg_pool2d(generator.decode(z, y), 2)
    x = small.decode(z, y)
    assert x.shape == (4, 3, 8, 8)
    assert float((x - expected).abs().mean()) < 0.1  # the filter is wider than a pixel
    assert build(folder, image_size=24).decode(z, y).shape == (4, 3, 24, 24)


# --- sampling --------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    ("scheduler", "name", "guidance"),
    [
        ("ddim", "DDIMScheduler", 3.0),
        ("ddim", "DDIMScheduler", 1.0),
        ("dpmsolver", "DPMSolverMultistepScheduler", 3.0),
        ("euler", "EulerDiscreteScheduler", 3.0),
    ],
)
def test_gives_what_the_pipeline_gives(folder, pipeline, scheduler, name, guidance):
    import diffusers

    generator = build(folder, scheduler=scheduler, guidance=guidance, steps=5, negative_prompt="bird", micro_batch=4)
    z, y = latents(generator)
    saved = diffusers.PNDMScheduler.from_pretrained(folder, subfolder="scheduler")
    parts = {**pipeline.components, "scheduler": getattr(diffusers, name).from_config(saved.config)}
    pipe = diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    expected = pipe(
        [PROMPTS[label] for label in y],
        negative_prompt=["bird"] * 4,
        latents=z,
        num_inference_steps=5,
        guidance_scale=guidance,
        output_type="pt",
    ).images
    torch.testing.assert_close(generator.decode(z, y), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("guidance", "rows"), [(1.0, 2), (3.0, 4)])
def test_without_guidance_there_is_no_second_pass(folder, guidance, rows):
    generator = build(folder, guidance=guidance, micro_batch=2)
    seen = []
    generator.unet.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    generator.decode(*latents(generator))
    assert seen == [rows] * 6  # 2 micro-batches of 3 steps


# --- gradients -------------------------------------------------------------------------------------------------------


def gradient(generator):
    z, y = latents(generator)
    z.requires_grad_()
    weight = torch.randn(4, *generator.image_shape, generator=torch.Generator().manual_seed(1))
    (grad,) = torch.autograd.grad((generator.decode(z, y) * weight).sum(), z)
    return grad


@pytest.mark.parametrize("options", [{}, {"scheduler": "dpmsolver"}, {"scheduler": "euler"}, {"image_size": 8}])
def test_gradients_are_those_without_recomputing(folder, monkeypatch, options):
    generator = build(folder, **options)
    calls = []
    original = stable_diffusion.checkpoint
    monkeypatch.setattr(stable_diffusion, "checkpoint", lambda f, *a, **k: calls.append(f) or original(f, *a, **k))
    recomputed = gradient(generator)
    assert len(calls) == 4 * (3 + 1)  # for each image 3 steps and the VAE
    monkeypatch.setattr(stable_diffusion, "checkpoint", lambda f, *a, **k: f(*a))
    assert bool((recomputed.flatten(1).abs().sum(1) > 0).all())
    torch.testing.assert_close(recomputed, gradient(generator))


def test_gradient_agrees_with_a_finite_difference(folder):
    generator = build(folder, guidance=1.0, steps=2)
    z, y = latents(generator, 1)
    direction = torch.randn(z.shape, generator=torch.Generator().manual_seed(2))
    weight = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)).double()

    def value(z):
        return (generator._pixels(generator._sample(z, y)) * weight).sum()  # before the cut, which is straight-through

    generator.double()
    z, direction = z.double().requires_grad_(), direction.double()
    (grad,) = torch.autograd.grad(value(z), z)
    with torch.no_grad():
        difference = (value(z + 1e-4 * direction) - value(z - 1e-4 * direction)) / 2e-4
    assert float((grad * direction).sum()) == pytest.approx(float(difference), rel=1e-3)


def test_nothing_is_recomputed_where_no_gradient_is_asked_for(generator, monkeypatch):
    monkeypatch.setattr(stable_diffusion, "checkpoint", None)
    z, y = latents(generator, 1)
    assert not generator.decode(z, y).requires_grad
    with torch.no_grad():
        generator.decode(z.requires_grad_(), y)


# --- what makes two searches the same --------------------------------------------------------------------------------


def test_where_the_files_lie_does_not_matter(generator, copied):
    moved = build(copied)
    assert moved.settings() == generator.settings()
    assert weights_sha256(moved) == weights_sha256(generator)
    args = generator.settings()["args"]
    assert {"prompts", "negative_prompt", "scheduler", "steps", "guidance", "image_size"} <= set(args)
    assert not {"path", "lora"} & set(args)


def test_what_the_files_say_does(generator, copied):
    edit(copied / "scheduler" / "scheduler_config.json", beta_end=0.02)
    assert weights_sha256(build(copied)) != weights_sha256(generator)


def test_another_text_encoder_counts_as_well(generator, copied):
    weights = load_file(copied / "text_encoder" / "model.safetensors")
    save_file({k: v + 0.1 for k, v in weights.items()}, copied / "text_encoder" / "model.safetensors", {"format": "pt"})
    other = build(copied)
    assert weights_sha256(other) != weights_sha256(generator)
    assert not torch.equal(other.prompt_embeddings, generator.prompt_embeddings)
    kept = {"unet", "vae", "latent_bounds", "files_sha256"}
    assert {name.split(".")[0] for name in other.state_dict()} == kept  # neither embeddings nor text encoder


def test_half_precision_files_run_in_fp32(generator, copied):
    file = copied / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({k: v.half() for k, v in load_file(file).items()}, file, {"format": "pt"})
    assert {weight.dtype for weight in build(copied).parameters()} == {torch.float32}


# --- LoRA ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_lora_is_added_to_the_weights(folder, generator, tmp_path):
    file = lora(tmp_path / "style.safetensors")
    changed = build(folder, lora=file)
    tensors = load_file(file)
    change = tensors[f"unet.{QUERY}.lora_B.weight"] @ tensors[f"unet.{QUERY}.lora_A.weight"]
    before, after = (g.unet.get_submodule(QUERY).weight for g in (generator, changed))
    torch.testing.assert_close(after, before + change)
    assert not torch.allclose(changed.decode(*latents(changed)), generator.decode(*latents(changed)))
    assert set(changed.state_dict()) == set(generator.state_dict())
    assert weights_sha256(changed) != weights_sha256(generator)
    assert changed.settings() == generator.settings()
    assert not any(parameter.requires_grad for parameter in changed.parameters())


def test_lora_may_change_the_text_encoder_only(folder, generator, tmp_path):
    name = "text_encoder.text_model.encoder.layers.0.self_attn.q_proj"
    changed = build(folder, lora=lora(tmp_path / "words.safetensors", name=name))
    assert not torch.allclose(changed.prompt_embeddings, generator.prompt_embeddings)
    assert weights_sha256(changed) != weights_sha256(generator)


def test_refuses_a_lora_that_it_cannot_use(folder, tmp_path):
    torch.save({f"unet.{QUERY}.lora_A.weight": torch.zeros(2, 16)}, tmp_path / "pickled.bin")
    shutil.copy(tmp_path / "pickled.bin", tmp_path / "disguised.safetensors")
    for file, message in {
        tmp_path / "pickled.bin": "must be a .safetensors file, since other formats can carry code, got .*pickled.bin",
        tmp_path / "none.safetensors": "lora: there is no file .*none.safetensors",
        tmp_path / "disguised.safetensors": "disguised.safetensors does not fit the model",
        lora(tmp_path / "large.safetensors", size=20): "large.safetensors does not fit the model: .*size mismatch",
        lora(tmp_path / "other.safetensors", name="transformer.block"): "holds nothing for unet or text_encoder",
    }.items():
        with pytest.raises(InputError, match=message):
            build(folder, lora=str(file))


# --- wrong input -----------------------------------------------------------------------------------------------------


def test_refuses_what_is_no_folder(tmp_path):
    for path in ("runwayml/stable-diffusion-v1-5", tmp_path / "none", __file__):
        with pytest.raises(InputError, match=f"there is no folder {path}; .* nothing is downloaded"):
            build(path)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (["model_index.json"], "lacks model_index.json;"),
        (["unet"], "lacks unet;"),
        (["vae", "scheduler"], "lacks vae, scheduler;"),
        (["text_encoder/model.safetensors"], "lacks text_encoder/model.safetensors;"),
        (["unet/diffusion_pytorch_model.safetensors"], "lacks unet/diffusion_pytorch_model.safetensors; .*only format"),
        (["vae/config.json"], "lacks vae/config.json;"),
        (["tokenizer/tokenizer.json"], "lacks tokenizer/tokenizer.json;"),
        (["scheduler/scheduler_config.json"], "lacks scheduler/scheduler_config.json;"),
    ],
)
def test_names_the_parts_that_are_missing(copied, removed, message):
    for name in removed:
        file = copied / name
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    with pytest.raises(InputError, match=message):
        build(copied)


def test_never_unpickles_weights(copied):
    folder = copied / "unet"
    weights = load_file(folder / "diffusion_pytorch_model.safetensors")
    torch.save(weights, folder / "diffusion_pytorch_model.bin")
    (folder / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"lacks unet/diffusion_pytorch_model\.safetensors"):
        build(copied)


def test_reads_the_older_tokenizer_files(generator, copied):
    (copied / "tokenizer" / "tokenizer.json").unlink()
    (copied / "tokenizer" / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(TOKENS)}))
    (copied / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    assert torch.equal(build(copied).prompt_embeddings, generator.prompt_embeddings)


def drop_a_weight(folder):
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != "conv_out.bias"}, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: edit(f / "model_index.json", _class_name="StableDiffusionXLPipeline"),
            "StableDiffusionXLPipeline; a",
        ),
        (lambda f: (f / "model_index.json").write_text("{"), "model_index.json does not say what"),
        (lambda f: (f / "vae/diffusion_pytorch_model.safetensors").write_bytes(b"?"), "vae of .* cannot be opened"),
        (drop_a_weight, "unet of .* is incomplete: it has no weights for conv_out.bias"),
        (lambda f: edit(f / "unet/config.json", sample_size=[8, 4]), "sample_size of unet"),
    ],
)
def test_says_what_is_wrong_with_a_folder(copied, damage, message):
    damage(copied)
    with pytest.raises(InputError, match=message):
        build(copied)


def test_refuses_parts_of_different_models(copied):
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes = {"hidden_size": 24, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    CLIPTextModel(CLIPTextConfig(vocab_size=99, **sizes)).save_pretrained(copied / "text_encoder")
    with pytest.raises(InputError, match="cross_attention_dim of unet is 16, and 24 is needed"):
        build(copied)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"prompts": []}, "prompts must be a list with one text for each class"),
        ({"prompts": "a cat"}, "prompts must be a list"),
        ({"prompts": ["a cat", "a very long text"]}, "'a very long text' has 15 tokens, .* takes 12"),
        ({"scheduler": "ddpm"}, "scheduler must be one of ddim, dpmsolver, euler, got 'ddpm'"),
        ({"steps": 0}, "at least 1"),
        ({"steps": 1001}, "steps must be at most 1000"),
        ({"guidance": 0.5}, "guidance must be at least 1 .*got 0.5"),
        ({"guidance": float("nan")}, "guidance"),
        ({"image_size": 0}, "at least 1"),
        ({"micro_batch": 5}, "micro_batch must be a divisor of 32, got 5"),
    ],
)
def test_refuses_what_it_cannot_do(folder, bad, message):
    with pytest.raises(InputError, match=message):
        build(folder, **bad)


def test_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs the package transformers: pip install 'lsgen\[pretrained\]'"):
        build(folder)


def test_is_not_fitted(generator):
    data = TensorDataset(torch.zeros(4, 3, 16, 16), torch.zeros(4, dtype=torch.long))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    with pytest.raises(InputError, match="comes trained, and lsgen does not fit it"):
        trainer.fit(generator, DataLoader(dataset=data, batch_size=2))
