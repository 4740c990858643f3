"""Where the author of a model wrote its nodes, as an exporter noted it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.models.model_lines import user_frame
from provisioning.base.command_line import Parser

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where the author of a model wrote a node, as the exporter noted it."""

    source: str = ""
    code: str = ""
    module: str = ""


def places_of(model: onnx.ModelProto) -> dict[str, SourcePlace]:
    here = f"{Parser.user_folder()}/"
    places = {}
    for node in model.graph.node:
        properties = {entry.key: entry.value for entry in node.metadata_props}
        frame = user_frame(properties.get("pkg.torch.onnx.stack_trace", ""))
        source = f"{frame.path.removeprefix(here)}:{frame.line}" if frame else ""
        places[node.name] = SourcePlace(source, frame.code if frame else "", _module(properties))
    return places


def _module(properties: Mapping[str, str]) -> str:
    """The module's path in named_modules(): the scopes without the operator's own."""
    try:
        scopes = ast.literal_eval(properties.get("pkg.torch.onnx.name_scopes", "[]"))
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(scopes, list) or not scopes:
        return ""
    # Each scope is a whole path; the last one is the operator.
    return str(scopes[-2]) or "(the model itself)" if len(scopes) > 1 else ""
