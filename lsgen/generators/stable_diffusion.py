"""Stable Diffusion 1.x and 2.x from a local folder: its latent is the noise that the sampling starts from."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators.base import BOUNDS_FROM, Generator
from lsgen.types import LatentSpec, cut

Scheduler = Literal["ddim", "dpmsolver", "euler"]

# Samplers that draw no random numbers, and what the folder's own settings must not change: latents aren't cut to
# [-1, 1], the stochastic variant of DPM-Solver is never taken, and Stable Diffusion was trained with an offset of 1.
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False, "steps_offset": 1}),
    "dpmsolver": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++", "steps_offset": 1}),
    "euler": ("EulerDiscreteScheduler", {"steps_offset": 1}),
}
# What each part of a folder must hold: one of several sets of files.
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "unet": (
        ("config.json", "diffusion_pytorch_model.safetensors"),
        ("config.json", "diffusion_pytorch_model.safetensors.index.json"),
    ),
    "vae": (
        ("config.json", "diffusion_pytorch_model.safetensors"),
        ("config.json", "diffusion_pytorch_model.safetensors.index.json"),
    ),
    "text_encoder": (("config.json", "model.safetensors"), ("config.json", "model.safetensors.index.json")),
    "tokenizer": (("vocab.json", "merges.txt"), ("tokenizer.json",)),
    "scheduler": (("scheduler_config.json",),),
}
# Files that decide the images and leave no trace in the weights of UNet and VAE.
DECISIVE = (
    "unet/config.json",
    "vae/config.json",
    "text_encoder/config.json",
    "text_encoder/model*.safetensors",
    "tokenizer/*.json",
    "tokenizer/*.txt",
    "scheduler/scheduler_config.json",
)
PIPELINE = "StableDiffusionPipeline"
PROMPTS_AT_ONCE = 32
CHUNK_UNIT = 32  # searches of more than a few seeds decode multiples of it


class StableDiffusion(Generator):
    """A text-to-image model of others, used as it is: one prompt for each class, sampled without further noise.

    There is nothing to fit: name it in a search config as it is, without a checkpoint. The folder is what
    ``save_pretrained`` of a diffusers ``StableDiffusionPipeline`` writes, with weights as safetensors; nothing is
    downloaded, and no code from the folder is run. Its safety checker isn't used.

    Gradients go back through all steps. Only the latents between the steps are kept, and each step is computed again on
    the way back, so memory hardly grows with ``steps``.

    Args:
        path: The folder.
        prompts: What each class is called, in the order of the labels, e.g. ``a photo of a goldfish``.
        negative_prompt: What guidance leads away from.
        lora: A .safetensors file of low-rank changes that are added to the weights. None: none.
        scheduler: ``ddim``, ``dpmsolver`` (DPM-Solver++, multistep) or ``euler``; its noise schedule is the folder's.
        steps: Passes through the network for one image.
        guidance: Weight of the prompt against the negative prompt; 1 leaves out the second, and halves the time.
        image_size: Height and width that images are resized to. None: as the model makes them.
        micro_batch: Images in one pass through the networks, a divisor of 32. Most searches decode 32 or more at a
            time, which do not fit on most GPUs together.

    Raises:
        InputError: No such folder, parts of it missing or damaged, a LoRA file that does not fit, a prompt that is too
            long for the text encoder, a number out of range, or packages that are not installed.
    """

    conditional = True
    encodes = False
    prompt_embeddings: Tensor
    negative_embedding: Tensor

    def __init__(
        self,
        *,
        path: str,
        prompts: list[str],
        negative_prompt: str = "",
        lora: str | None = None,
        scheduler: Scheduler = "ddim",
        steps: int = 20,
        guidance: float = 7.5,
        image_size: int | None = None,
        micro_batch: int = 1,
    ) -> None:
        super().__init__()
        self.path, self.prompts, self.negative_prompt, self.lora = path, prompts, negative_prompt, lora
        self.scheduler, self.steps, self.guidance = scheduler, steps, guidance
        self.image_size, self.micro_batch = image_size, micro_batch
        self.num_classes = len(prompts)
        self._check_settings()

        pipeline = _load(Path(path), scheduler)
        if lora is not None:
            _add_lora(pipeline, lora)
        self.unet, self.vae, self._sampler = pipeline.unet, pipeline.vae, pipeline.scheduler
        trained_steps = self._sampler.config.num_train_timesteps
        if steps > trained_steps:
            raise InputError(f"steps must be at most {trained_steps}, which {path} was trained with, got {steps}")
        side = image_size or self.unet.config.sample_size * pipeline.vae_scale_factor
        self.image_shape = (3, side, side)

        # the text encoder itself isn't kept: it has said all it has to say, and its weights are in the hash
        self.register_buffer("prompt_embeddings", _embed(pipeline, prompts), persistent=False)
        self.register_buffer("negative_embedding", _embed(pipeline, [negative_prompt]), persistent=False)
        self.register_buffer("files_sha256", _files_sha256(Path(path), lora))
        self._measure_prior()
        self.requires_grad_(False)
        self.eval()

    # --- what a generator does ---------------------------------------------------------------------------------------

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(4, h, w): the noise in the VAE's space."""
        side: int = self.unet.config.sample_size
        return (self.unet.config.in_channels, side, side)

    @property
    def latent(self) -> LatentSpec:
        """Noise."""
        return replace(super().latent, kind="noise")

    @property
    def stages(self) -> list[nn.Module]:
        """None: the network runs once for each step, so no list of modules leads from latent to image."""
        return []

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Noise [N, 4, h, w] and labels [N] -> images [N, 3, H, W]."""
        pieces = zip(z.split(self.micro_batch), y.split(self.micro_batch), strict=True)
        return torch.cat([self._images(self._sample(noise, label)) for noise, label in pieces])

    def settings(self) -> Any:
        """All arguments but where the files lie: what is in them is hashed with the weights."""
        about = super().settings()
        return {**about, "args": {k: v for k, v in about["args"].items() if k not in ("path", "lora")}}

    def measure_bounds(self, data: ImageData) -> None:
        """Leaves the bounds: they are those of the prior, whatever the data."""

    def train(self, mode: bool = True) -> StableDiffusion:
        """Stays in eval mode: it is used as it is, and dropout would change its images from call to call."""
        return super().train(False)

    # --- sampling ----------------------------------------------------------------------------------------------------

    def _sample(self, z: Tensor, y: Tensor) -> Tensor:
        """Noise [n, 4, h, w] and labels [n] -> what the VAE decodes, [n, 4, h, w]."""
        sampler = copy.deepcopy(self._sampler)  # multistep ones remember steps, which must not pass to the next call
        sampler.set_timesteps(self.steps, device=z.device)
        text = self.prompt_embeddings[y]
        x = z * sampler.init_noise_sigma
        for t in sampler.timesteps:
            # only the network is computed again on the way back: the sampler's memory must see every step once
            noise = _recomputed(self._noise, sampler.scale_model_input(x, t), t, text)
            x = sampler.step(noise, t, x, return_dict=False)[0]
        return x

    def _noise(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        """What the network takes for noise in x [n, 4, h, w] at time t, given texts [n, T, E]; [n, 4, h, w]."""
        if self.guidance == 1:
            noise: Tensor = self.unet(x, t, text, return_dict=False)[0]
            return noise.to(x.dtype)
        texts = torch.cat([self.negative_embedding.expand_as(text), text])
        away, towards = self.unet(torch.cat([x, x]), t, texts, return_dict=False)[0].to(x.dtype).chunk(2)
        return away + self.guidance * (towards - away)

    def _images(self, x: Tensor) -> Tensor:
        """[n, 4, h, w] -> images [n, 3, H, W] in [0, 1]."""
        image = cut(_recomputed(self._pixels, x))
        if image.shape[1:] != self.image_shape:
            size = self.image_shape[1:]
            image = F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=True)
            image = cut(image)  # sums of weights that should be 1 can exceed it by a rounding error
        return image

    def _pixels(self, x: Tensor) -> Tensor:
        """[n, 4, h, w] -> pixels of the VAE's size, in [0, 1] but for overshoots."""
        decoded: Tensor = self.vae.decode(x / self.vae.config.scaling_factor, return_dict=False)[0]
        return decoded.to(x.dtype) / 2 + 0.5

    # --- there is nothing to fit -------------------------------------------------------------------------------------

    def setup(self, stage: str) -> NoReturn:
        """Refuses; a search does not come here."""
        raise InputError(
            "StableDiffusion comes trained, and lsgen does not fit it: name it as the generator of a search config; "
            "to adapt it, train a LoRA with diffusers and give the file as lora"
        )

    def training_step(self, *args: Any) -> NoReturn:
        """Refuses; Lightning looks whether there is one before it calls setup."""
        self.setup("fit")

    def configure_optimizers(self) -> NoReturn:
        """Refuses, as :meth:`training_step`."""
        self.setup("fit")

    # --- at construction ---------------------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        if isinstance(self.prompts, str) or not self.prompts:
            raise InputError(f"prompts must be a list with one text for each class, got {self.prompts!r}")
        if self.scheduler not in get_args(Scheduler):
            raise InputError(f"scheduler must be one of {', '.join(get_args(Scheduler))}, got {self.scheduler!r}")
        if self.steps < 1 or (self.image_size is not None and self.image_size < 1):
            raise InputError(f"steps and image_size must be at least 1, got {self.steps}, {self.image_size}")
        if not 1 <= self.guidance < float("inf"):
            raise InputError(f"guidance must be at least 1 (1: no guidance), got {self.guidance}")
        if self.micro_batch < 1 or CHUNK_UNIT % self.micro_batch:
            raise InputError(f"micro_batch must be a divisor of {CHUNK_UNIT}, got {self.micro_batch}")

    def _measure_prior(self) -> None:
        """Sets the bounds to the extremes of 1,000 draws from the prior."""
        rng = torch.Generator().manual_seed(0)
        z = self.sample_prior(BOUNDS_FROM, torch.zeros(BOUNDS_FROM), rng)
        self.latent_bounds.copy_(torch.stack([z.min(), z.max()]))


def _recomputed(function: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """``function`` of x, whose inner results are not kept for the gradient but computed again when it is asked for."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return function(x, *others)
    result: Tensor = checkpoint(function, x, *others, use_reentrant=False, preserve_rng_state=False)
    return result


# --- files -----------------------------------------------------------------------------------------------------------


def _load(path: Path, scheduler: str) -> Any:
    """The diffusers pipeline in a folder, in fp32 on the CPU.

    Every part is opened as the class that belongs there, not as what the folder names, which could be code of its own.
    """
    _check_folder(path)
    transformers, diffusers = _package("transformers"), _package("diffusers")
    unet = _network(path, "unet", diffusers.UNet2DConditionModel)
    vae = _network(path, "vae", diffusers.AutoencoderKL)
    text_encoder = _network(path, "text_encoder", transformers.CLIPTextModel)
    tokenizer = _opened(path, "tokenizer", transformers.CLIPTokenizer)
    name, options = SAMPLERS[scheduler]
    sampler = _opened(path, "scheduler", getattr(diffusers, name), **options)
    _check_together(path, unet, vae, text_encoder)
    # a tokenizer without a limit of its own would pad without end
    tokenizer.model_max_length = min(tokenizer.model_max_length, text_encoder.config.max_position_embeddings)
    return diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=sampler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"StableDiffusion needs the package {name}: pip install 'lsgen[pretrained]'") from error


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise InputError(
            f"path: there is no folder {path}; give a local Stable Diffusion folder, nothing is downloaded"
        )
    missing = [] if (path / "model_index.json").is_file() else ["model_index.json"]
    missing += [name for part in PARTS for name in _missing(path, part)]
    if missing:
        raise InputError(
            f"path: {path} lacks {', '.join(missing)}; save_pretrained of a diffusers {PIPELINE} writes all parts, "
            "with weights as safetensors, the only format that is read"
        )
    try:
        kind = json.loads((path / "model_index.json").read_text())["_class_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"path: {path}/model_index.json does not say what the folder holds") from error
    if kind != PIPELINE:
        raise InputError(f"path: {path} holds a {kind}; a {PIPELINE} (Stable Diffusion 1.x or 2.x) is needed")


def _missing(path: Path, part: str) -> list[str]:
    """What a part lacks: itself, or files of it."""
    if not (path / part).is_dir():
        return [part]
    lacking = [[f"{part}/{f}" for f in files if not (path / part / f).is_file()] for files in PARTS[part]]
    return min(lacking, key=len)  # of several ways to be complete the nearest, or the usual one, which is listed first


def _opened(path: Path, part: str, kind: Any, **options: Any) -> Any:
    """A part of the folder, as an object of class ``kind``."""
    try:
        return kind.from_pretrained(str(path), subfolder=part, local_files_only=True, **options)
    except Exception as error:  # a damaged file can raise almost anything
        raise InputError(f"path: {part} of {path} cannot be opened as a {kind.__name__}: {_said(error)}") from error


def _network(path: Path, part: str, kind: Any) -> Any:
    """A part that has weights, all of which must be in the folder."""
    network, found = _opened(path, part, kind, use_safetensors=True, output_loading_info=True)
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"path: {part} of {path} is incomplete: it has no weights for {missing[0]}{more}")
    return network.float()


def _check_together(path: Path, unet: Any, vae: Any, text_encoder: Any) -> None:
    """Refuses parts of different models, which would fail at the first image only."""
    wanted = {
        "in_channels of unet": (unet.config.in_channels, vae.config.latent_channels),
        "cross_attention_dim of unet": (unet.config.cross_attention_dim, text_encoder.config.hidden_size),
        "out_channels of vae": (vae.config.out_channels, 3),
    }
    for name, (given, fits) in wanted.items():
        if given != fits:
            raise InputError(f"path: the parts of {path} do not fit together: {name} is {given}, and {fits} is needed")
    if not isinstance(unet.config.sample_size, int):
        raise InputError(f"path: sample_size of unet in {path} must be one number, got {unet.config.sample_size}")


def _add_lora(pipeline: Any, lora: str) -> None:
    """Adds the changes in a LoRA file to the weights of the pipeline."""
    file = Path(lora)
    if file.suffix != ".safetensors":
        raise InputError(f"lora must be a .safetensors file, since other formats can carry code, got {lora}")
    if not file.is_file():
        raise InputError(f"lora: there is no file {lora}")
    _package("peft")
    try:
        pipeline.load_lora_weights(str(file.parent), weight_name=file.name, local_files_only=True, use_safetensors=True)
    except Exception as error:  # names, shapes and damaged files all raise their own
        raise InputError(f"lora: {lora} does not fit the model: {_said(error)}") from error
    changed = list(pipeline.get_list_adapters())
    if not changed:
        raise InputError(f"lora: {lora} holds nothing for unet or text_encoder")
    pipeline.fuse_lora(components=changed)
    pipeline.unload_lora_weights()


@torch.no_grad()
def _embed(pipeline: Any, texts: list[str]) -> Tensor:
    """Texts -> what the text encoder makes of them, [len(texts), T, E]."""
    limit = pipeline.tokenizer.model_max_length
    for text in texts:
        if (length := len(pipeline.tokenizer(text).input_ids)) > limit:
            raise InputError(f"the prompt {text!r} has {length} tokens, and the text encoder takes {limit}: shorten it")
    chunks = [texts[start : start + PROMPTS_AT_ONCE] for start in range(0, len(texts), PROMPTS_AT_ONCE)]
    return torch.cat([pipeline.encode_prompt(chunk, torch.device("cpu"), 1, False)[0] for chunk in chunks])


def _files_sha256(path: Path, lora: str | None) -> Tensor:
    """Content of the files beside the weights of UNet and VAE, as 32 bytes.

    It is a buffer, so that a search with another tokenizer or noise schedule counts as another search.
    """
    files = [file for pattern in DECISIVE for file in sorted(path.glob(pattern))]
    content = [(file.relative_to(path).as_posix(), file) for file in files]
    content += [("lora", Path(lora))] if lora is not None else []
    digest = hashlib.sha256()
    for name, file in content:
        digest.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def _said(error: Exception) -> str:
    """An exception as one line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    told = lines[:2] if lines and lines[0].endswith(":") else lines[:1]  # torch puts what is wrong on the second line
    return ": ".join([type(error).__name__, " ".join(told)])
