"""The models that forecasts are fitted by, with random weights, as .onnx. Only a worker imports it."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from ci.models.vision_operators import define_vision_operators
from lab.forecast.hub import FittedModel

OPSET = 17
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ANSWERS = (
    ("logits", "pred_boxes"),
    ("logits",),
    ("out",),
    ("predicted_depth",),
    ("pooler_output",),
    ("last_hidden_state",),
)
"""What libraries call what a model is for: the first of which all are there."""


class OfPixels(torch.nn.Module):
    """A network of images that takes pixels of 0 to 1 and normalizes them itself."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(MEAN).reshape(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(DEVIATION).reshape(1, 3, 1, 1))

    def forward(self, image: torch.Tensor) -> Any:
        return answer(self.net((image - self.mean) / self.deviation))


class OfText(torch.nn.Module):
    """A network of tokens; of a masked model, the token that it puts at a place."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, place: torch.Tensor | None = None) -> Any:
        output = self.net(input_ids=tokens, attention_mask=mask)
        if place is None:
            return answer(output)
        return output.logits[torch.arange(1), place.to(torch.int64)].argmax(dim=-1)


def answer(output: Any) -> Any:
    """The tensors of what a library returns: the answer alone, without hidden states."""
    if isinstance(output, torch.Tensor):
        return output
    for names in ANSWERS if isinstance(output, Mapping) else ():
        if all(isinstance(output.get(name), torch.Tensor) for name in names):
            found = tuple(output[name] for name in names)
            return found if len(found) > 1 else found[0]
    return next(value for value in output if isinstance(value, torch.Tensor))


def export_to_onnx(row: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A factory: the model of a row of models.toml, as JSON, with inputs to draw others like.
    Weights do not decide its time."""
    define_vision_operators()
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # The exporter does not know the fused attention.
    model = FittedModel.model_validate_json(row)
    library, _, name = model.make.partition(":")
    network = MAKERS[library](model, name)
    net: torch.nn.Module
    if not model.tokens:
        net, inputs = OfPixels(network), {"image": torch.rand(1, 3, model.size, model.size)}
    else:
        net = OfText(network)
        inputs = {
            "tokens": torch.ones(1, model.tokens, dtype=torch.int32),
            "mask": torch.ones(1, model.tokens),
        }
        if name.endswith("MaskedLM"):
            inputs["place"] = torch.ones(1, dtype=torch.int32)
    # Quantized, a network with weights so small (ConvNeXt) or zero (ViT's head) would be folded away.
    for title, value in net.named_parameters():
        if title.endswith("layer_scale"):
            torch.nn.init.ones_(value)
        elif value.ndim > 1 and not value.any():
            torch.nn.init.normal_(value, std=0.02)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-forecast-") as folder, torch.no_grad():
        path = str(Path(folder, "model.onnx"))
        values = tuple(inputs.values())
        torch.onnx.export(net.eval(), values, path, dynamo=False, opset_version=OPSET, input_names=[*inputs])
        return onnx.load(path), {name: value.numpy() for name, value in inputs.items()}


def _torchvision(model: FittedModel, name: str) -> Any:
    module, _, function = f"torchvision.models.{name}".rpartition(".")
    more: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        more = {"init_weights": False, "aux_logits": name == "inception_v3"}
    if "segmentation" in name:
        more = {"weights_backbone": None}
    return getattr(importlib.import_module(module), function)(weights=None, **more)


def _timm(model: FittedModel, name: str) -> Any:
    return importlib.import_module("timm").create_model(name, pretrained=False, exportable=True)


def _transformers(model: FittedModel, name: str) -> Any:
    import transformers

    kind = getattr(transformers, name)
    backbone: dict[str, Any] = {}
    if model.backbone:
        timm = {"use_timm_backbone": True, "use_pretrained_backbone": False}
        backbone = {**timm, "backbone": model.backbone}
    config = kind.config_class(**backbone, **model.config)
    if model.dino:
        config.backbone_config = transformers.Dinov2Config(**model.dino)
    config.return_dict = True
    config._attn_implementation = "eager"
    return kind(config)


MAKERS = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
