"""What real phones measured: AI Hub's tables, from the pinned wheel. Nothing of it is installed or run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ci.pipeline.phones import Forecasts
from provisioning.base import progress
from provisioning.base.errors import UnknownName
from provisioning.base.units import aligned
from provisioning.manifest import Component, Part, Placement
from provisioning.sources.wheel import Wheel
from provisioning.store import Store

NAME = "ai-hub-models"
TABLES = r"qai_hub_models/models/(?P<model>[^/]+)/(?P<table>perf|manifest)\.yaml"


@dataclass(frozen=True, slots=True)
class Measured:
    """One component of a model on one device: its time, or how fast a language model speaks."""

    model: str
    component: str
    precision: str
    """By AI Hub's name: float, w8a8, w8a16."""
    device: str
    runtime: str
    milliseconds: float = 0
    layers: int = 0
    off_npu: int = 0
    context: int = 0
    tokens_per_second: float = 0
    prompt_tokens_per_second: float | None = None

    @property
    def name(self) -> str:
        """As the manifest of forecasts names the model."""
        return f"{self.model} {self.component}" if self.component else self.model

    def cells(self, phone: str) -> tuple[str, ...]:
        about = (f"  {self.component}", self.precision, phone, self.runtime)
        if self.milliseconds:
            off = f", {self.off_npu} not on the NPU" if self.off_npu else ""
            return (*about, f"{self.milliseconds:.3f} ms", f"{self.layers} layers{off}", "")
        prompt = f"prompt {speed:,.0f} tokens/s" if (speed := self.prompt_tokens_per_second) else ""
        return (*about, f"{self.tokens_per_second:.1f} tokens/s", f"context {self.context:,}", prompt)


def tables(forecasts: Forecasts, store: Store) -> Path:
    """The folder of AI Hub's models; fetched on first use."""
    wheel = Wheel(type="wheel", package="qai-hub-models", **forecasts.wheel.model_dump())
    part = Part(name=NAME, source=wheel, place=(Placement(match=TABLES, to="{model}/{table}.yaml"),))
    component = Component(version=wheel.version, parts=(part,))
    return store.provision(NAME, component, progress=progress.for_stream()).root


def measurements(root: Path, model: str) -> Iterator[Measured]:
    """All that phones measured of a model."""
    for precision, of_precision in (_table(root, model, "perf").get("precisions") or {}).items():
        components = of_precision.get("components") or {}
        for component, of_component in components.items():
            name = component if len(components) > 1 else ""
            for device, runtimes in (of_component.get("performance_metrics") or {}).items():
                for runtime, row in runtimes.items():
                    yield from _rows((model, name, precision, device, runtime), row or {})


def _rows(about: tuple[str, str, str, str, str], row: Mapping[str, Any]) -> Iterator[Measured]:
    if milliseconds := row.get("inference_time_milliseconds"):
        layers = row.get("layer_counts") or {}
        total = int(layers.get("total", 0))
        yield Measured(*about, float(milliseconds), total, total - int(layers.get("npu", total)))
    for spoken in row.get("llm_metrics") or ():
        yield Measured(
            *about,
            context=int(spoken["context_length"]),
            tokens_per_second=float(spoken["tokens_per_second"]),
            prompt_tokens_per_second=spoken.get("prefill_tokens_per_second"),
        )


def found(words: str, root: Path) -> dict[str, tuple[str, list[Measured]]]:
    """By model whose name or use has these words: its use, and what was measured."""
    wanted, every, models = words.lower().replace("-", "_"), [], {}
    for name in sorted(path.parent.name for path in root.glob("*/perf.yaml")):
        every.append(name)
        about = _table(root, name, "manifest")
        use = f"{about.get('use_case', '')}"
        if wanted.replace("_", " ") in f"{name} {about.get('name', '')} {use}".lower().replace("_", " "):
            models[name] = use, [*measurements(root, name)]
    if not models:
        raise UnknownName(f"AI Hub's table has no model like {words!r}", wanted, every)
    return {wanted: models[wanted]} if wanted in models else models


def in_words(models: Mapping[str, tuple[str, list[Measured]]], devices: Mapping[str, str]) -> list[str]:
    """`devices`: the phones' names by AI Hub's."""
    lines = []
    for model, (use, rows) in models.items():
        cells = [row.cells(devices[row.device]) for row in rows if row.device in devices]
        lines += ["", f"{model}: {use}" if use else model]
        lines += aligned(cells) or ["  nothing on these phones"]
    return lines


def as_dicts(models: Mapping[str, tuple[str, Sequence[Measured]]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "use": use, "measured": [asdict(row) for row in rows]}
        for name, (use, rows) in models.items()
    ]


def _table(root: Path, model: str, table: str) -> dict[str, Any]:
    """Empty if the model has none."""
    import yaml

    path, loader = root / model / f"{table}.yaml", getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = path.read_text(encoding="utf-8") if path.is_file() else "{}"
    read: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506  (a safe loader)
    return read
