"""The models that forecasts are fitted by, with random weights, as .onnx. Only `forecast fit` imports it."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import torch

from ci.lanes.upstream.shims import define_vision_operators
from ci.pipeline.phones import FittedModel

OPSET = 17
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OfPixels(torch.nn.Module):
    """A network of images or films that takes pixels of 0 to 1 and normalizes them itself."""

    def __init__(self, net: torch.nn.Module, dimensions: int) -> None:
        super().__init__()
        shape = (1, 3, *[1] * (dimensions - 2))
        self.net = net
        self.register_buffer("mean", torch.tensor(MEAN).reshape(shape))
        self.register_buffer("deviation", torch.tensor(DEVIATION).reshape(shape))

    def forward(self, image: torch.Tensor) -> Any:
        return tensors(self.net((image - self.mean) / self.deviation))


class OfFilm(OfPixels):
    """A network whose films have their frames first."""

    def forward(self, image: torch.Tensor) -> Any:
        return tensors(self.net(((image - self.mean) / self.deviation).transpose(1, 2)))


class OfText(torch.nn.Module):
    """A network of tokens; of a masked model, the token that it puts at a place."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        return tensors(self.net(input_ids=tokens, attention_mask=mask))


class OfMaskedText(OfText):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> Any:  # type: ignore[override]
        logits = self.net(input_ids=tokens, attention_mask=mask).logits
        return logits[torch.arange(1), place.to(torch.int64)].argmax(dim=-1)


class OfBoth(OfPixels):
    """A network of an image and texts about it."""

    def forward(self, image: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> Any:  # type: ignore[override]
        pixels = (image - self.mean) / self.deviation
        return tensors(self.net(input_ids=tokens, pixel_values=pixels, attention_mask=mask))


ANSWERS = (
    ("logits", "pred_boxes"),
    ("logits",),
    ("out",),
    ("predicted_depth",),
    ("logits_per_image",),
    ("pooler_output",),
    ("last_hidden_state",),
)
"""What libraries call what a model is for: the first of which all are there."""


def tensors(output: Any) -> Any:
    """The tensors of what a library returns: the answer alone, without hidden states."""
    if isinstance(output, torch.Tensor):
        return output
    named = dict(output) if isinstance(output, dict) else {}
    for answer in ANSWERS:
        if all(isinstance(named.get(name), torch.Tensor) for name in answer):
            found = tuple(named[name] for name in answer)
            return found if len(found) > 1 else found[0]
    return next(value for value in output if isinstance(value, torch.Tensor))


def as_onnx(row: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A factory: the model of a row of manifests/forecast.toml, as JSON, with inputs to draw others like."""
    model = FittedModel.model_validate_json(row)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-forecast-") as folder:
        path = Path(folder, "model.onnx")
        inputs = export(model, path)
        return onnx.load(str(path)), inputs


def as_pytorch(row: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A factory: the same model for a lane that exports it itself."""
    torch.manual_seed(0)
    net, inputs, _ = built(FittedModel.model_validate_json(row))
    with_weights(net)
    return net.eval(), inputs


def export(model: FittedModel, path: Path) -> dict[str, Any]:
    """Write the model as AI Hub compiles it; returns its inputs. Weights do not decide its time."""
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # The exporter does not know the fused attention.
    net, inputs, names = built(model)
    with_weights(net)
    with torch.no_grad():
        torch.onnx.export(
            net.eval(), inputs, str(path), dynamo=False, opset_version=OPSET, input_names=list(names)
        )
    return {name: value.numpy() for name, value in zip(names, inputs, strict=True)}


def with_weights(net: torch.nn.Module) -> None:
    """Quantized, a network with weights so small (ConvNeXt) or zero (ViT's head) would be folded away."""
    for name, value in net.named_parameters():
        if name.endswith("layer_scale"):
            torch.nn.init.ones_(value)
        elif value.ndim > 1 and not value.any():
            torch.nn.init.normal_(value, std=0.02)


def built(model: FittedModel) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Sequence[str]]:
    """The network, its inputs and their names."""
    _vision_operators()
    library, _, name = model.make.partition(":")
    net = MAKERS[library](model, name)
    size, frames = model.size, model.frames
    tokens = torch.ones(1, model.tokens, dtype=torch.int32)
    text = (tokens, torch.ones(1, model.tokens))
    if library != "transformers" or not model.tokens:
        pixels = torch.rand(1, 3, frames, size, size) if frames else torch.rand(1, 3, size, size)
        kind = OfFilm if frames and library == "transformers" else OfPixels
        return kind(net, pixels.ndim), (pixels,), ("image",)
    if hasattr(net, "vision_model") or hasattr(net, "owlvit"):
        return OfBoth(net, 4), (torch.rand(1, 3, size, size), *text), ("image", "tokens", "mask")
    if name.endswith("MaskedLM"):
        place = torch.ones(1, dtype=torch.int32)
        return OfMaskedText(net), (*text, place), ("tokens", "mask", "place")
    return OfText(net), text, ("tokens", "mask")


_vision_operators = cache(define_vision_operators)


def _torchvision(model: FittedModel, name: str) -> torch.nn.Module:
    module, _, function = f"torchvision.models.{name}".rpartition(".")
    inception = {"googlenet": False, "inception_v3": True}
    more: dict[str, Any] = {"init_weights": False, "aux_logits": inception[name]} if name in inception else {}
    segmentation = {"weights_backbone": None} if "segmentation" in name else {}
    made: torch.nn.Module = getattr(importlib.import_module(module), function)(
        weights=None, **more, **segmentation
    )
    return made


def _timm(model: FittedModel, name: str) -> torch.nn.Module:
    import timm

    made: torch.nn.Module = timm.create_model(name, pretrained=False, exportable=True)
    return made


def _transformers(model: FittedModel, name: str) -> torch.nn.Module:
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**model.config)
    if model.backbone:
        config = kind.config_class(
            use_timm_backbone=True, use_pretrained_backbone=False, backbone=model.backbone, **model.config
        )
    if model.dino:
        config.backbone_config = transformers.Dinov2Config(**model.dino)
    for field, value in model.vision.items():
        setattr(config.vision_config, field, value)
    config.return_dict = True
    config._attn_implementation = "eager"
    made: torch.nn.Module = kind(config)
    return made


MAKERS = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
