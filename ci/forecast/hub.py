"""What real phones measured: AI Hub's tables, from the pinned wheel. Nothing of it is installed or run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.pipeline.phones import Forecasts
from provisioning.base import progress
from provisioning.base.errors import CheckFailed
from provisioning.manifest import Component, Part, Placement
from provisioning.sources.wheel import Wheel
from provisioning.store import Store

NAME = "ai-hub-models"
TABLES = r"qai_hub_models/models/(?P<model>[^/]+)/(?P<table>perf|numerics|manifest)\.yaml"
LIBRARY = re.compile(r"^import timm|^from timm|torchvision|transformers", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Measured:
    """One component of a model on one device."""

    model: str
    component: str
    precision: str
    """By AI Hub's name: float, w8a8, w8a16."""
    device: str
    runtime: str
    milliseconds: float
    layers: int
    off_npu: int
    """How many of them."""
    qairt: str

    @property
    def name(self) -> str:
        """As the manifest of forecasts names the model."""
        return f"{self.model} {self.component}" if self.component else self.model


@dataclass(frozen=True, slots=True)
class Spoken:
    """How fast a language model speaks on one device."""

    model: str
    precision: str
    device: str
    runtime: str
    context: int
    tokens_per_second: float
    prompt_tokens_per_second: float | None


def tables(forecasts: Forecasts, store: Store) -> Path:
    """The folder of AI Hub's models; fetched on first use."""
    pinned = forecasts.wheel
    wheel = Wheel(
        type="wheel",
        package="qai-hub-models",
        version=pinned.version,
        filename=pinned.filename,
        sha256=pinned.sha256,
        size=pinned.size,
    )
    part = Part(name=NAME, source=wheel, place=(Placement(match=TABLES, to="{model}/{table}.yaml"),))
    component = Component(version=pinned.version, parts=(part,))
    return store.provision(NAME, component, progress=progress.for_stream()).root


def read_table(root: Path, model: str, table: str) -> dict[str, Any]:
    """Empty if the model has none."""
    import yaml

    path = root / model / f"{table}.yaml"
    if not path.is_file():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506  (a safe loader)
    if not isinstance(read, dict):
        raise CheckFailed(
            f"{path}: expected a table, found {type(read).__name__}", fix="remove it, and try again"
        )
    return read


def models(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if (path / "perf.yaml").is_file())


def _rows(root: Path, model: str) -> Iterator[tuple[str, str, str, str, Mapping[str, Any]]]:
    """By precision, component (of several), device and runtime, what phones measured of a model."""
    precisions: Mapping[str, Any] = read_table(root, model, "perf").get("precisions") or {}
    for precision, of_precision in precisions.items():
        components = of_precision.get("components") or {}
        for component, of_component in components.items():
            for device, runtimes in (of_component.get("performance_metrics") or {}).items():
                for runtime, row in runtimes.items():
                    yield precision, component if len(components) > 1 else "", device, runtime, row or {}


def measurements(root: Path, model: str) -> Iterator[Measured]:
    """All times that phones measured of a model."""
    for precision, component, device, runtime, row in _rows(root, model):
        if milliseconds := row.get("inference_time_milliseconds"):
            layers = row.get("layer_counts") or {}
            total = int(layers.get("total", 0))
            yield Measured(
                model,
                component,
                precision,
                device,
                runtime,
                float(milliseconds),
                total,
                total - int(layers.get("npu", total)),
                str((row.get("tool_versions") or {}).get("qairt", "")),
            )


def spoken(root: Path, model: str) -> Iterator[Spoken]:
    """All that phones measured of a language model."""
    for precision, _, device, runtime, row in _rows(root, model):
        for metrics in row.get("llm_metrics") or ():
            context, own = int(metrics["context_length"]), float(metrics["tokens_per_second"])
            prompt = metrics.get("prefill_tokens_per_second")
            yield Spoken(
                model, precision, device, runtime, context, own, None if prompt is None else float(prompt)
            )
