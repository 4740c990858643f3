"""What real phones measured: AI Hub's tables, from the pinned wheel. Nothing of it is installed or run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, RootModel

from ci.one_model.forecast import Forecasts
from provisioning.base import progress
from provisioning.base.documents import Model, load
from provisioning.manifest import Component, Part, Placement
from provisioning.sources import Wheel
from provisioning.store import Store

NAME = "ai-hub-models"
TABLES = r"qai_hub_models/models/(?P<model>[^/]+)/perf\.yaml"


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
    off_npu: int
    """Layers that another processor computed."""

    @property
    def name(self) -> str:
        """As models.toml names the model."""
        return f"{self.model} {self.component}" if self.component else self.model


def tables(forecasts: Forecasts, store: Store) -> Path:
    """The folder of AI Hub's models; fetched on first use."""
    wheel = Wheel(type="wheel", package="qai-hub-models", **forecasts.wheel.model_dump())
    part = Part(name=NAME, source=wheel, place=(Placement(match=TABLES, to="{model}/perf.yaml"),))
    component = Component(version=wheel.version, parts=(part,))
    return store.provision(NAME, component, progress=progress.for_stream()).root


def measurements(root: Path, model: str) -> Iterator[Measured]:
    """The times of a model on phones; none if the table has no such model."""
    import yaml

    path = root / model / "perf.yaml"
    table = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for precision, of_precision in (table.get("precisions") or {}).items():
        components = of_precision.get("components") or {}
        for component, of_component in components.items():
            name = component if len(components) > 1 else ""
            for device, runtimes in (of_component.get("performance_metrics") or {}).items():
                for runtime, row in runtimes.items():
                    if milliseconds := (row or {}).get("inference_time_milliseconds"):
                        layers = row.get("layer_counts") or {}
                        total = int(layers.get("total", 0))
                        off_npu = total - int(layers.get("npu", total))
                        about = (model, name, precision, device, runtime)
                        yield Measured(*about, float(milliseconds), off_npu)


class FittedModel(Model):
    """How a model of the wheel is made here."""

    make: str
    """LIBRARY:NAME."""
    size: int = 224
    tokens: int = 0
    backbone: str = ""
    config: dict[str, object] = Field(default_factory=dict)
    dino: dict[str, object] = Field(default_factory=dict)
    in_float: tuple[str, ...] = ()
    """The nodes that AI Hub's quantizing leaves in float: patterns of their names."""


class _Models(RootModel[dict[str, FittedModel]]):
    pass


def fitted_models() -> Mapping[str, FittedModel]:
    return load(Path(__file__).with_name("models.toml"), _Models).root
