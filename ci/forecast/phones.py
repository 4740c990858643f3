"""AI Hub's own table of phones, searched: latencies, bytes and accuracy, as it has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ci.forecast import hub
from ci.forecast.hub import Measured, Spoken
from ci.pipeline.phones import Forecasts
from provisioning.base.errors import UnknownName
from provisioning.base.units import aligned
from provisioning.store import Store


@dataclass(frozen=True, slots=True)
class HubModel:
    name: str
    use: str
    measured: tuple[Measured, ...]
    spoken: tuple[Spoken, ...]
    accuracy: dict[str, str]
    """By precision and runtime, on a device and in PyTorch."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def found(words: str, table: Forecasts, store: Path) -> list[HubModel]:
    """The models whose name or use has these words."""
    root = hub.tables(table, Store(store))
    wanted = words.lower().replace("-", "_")
    names, models = hub.models(root), []
    for name in names:
        about = hub.read_table(root, name, "manifest")
        use = f"{about.get('use_case', '')}"
        known = f"{name} {about.get('name', '')} {use}".lower()
        if wanted in known.replace("-", "_") or wanted.replace("_", " ") in known:
            models.append(
                HubModel(
                    name,
                    use,
                    tuple(hub.measurements(root, name)),
                    tuple(hub.spoken(root, name)),
                    dict(_accuracy(root, name)),
                )
            )
    if exact := [model for model in models if model.name == wanted]:
        return exact
    if not models:
        raise UnknownName(f"AI Hub's table has no model like {words!r}", wanted, names)
    return models


def _accuracy(root: Path, model: str) -> Iterator[tuple[str, str]]:
    """By precision and runtime, what its first metric was on a device, and in PyTorch."""
    for metric in (hub.read_table(root, model, "numerics").get("metrics") or [])[:1]:
        unit, name = metric.get("metric_unit") or "", metric.get("metric_name", "")
        for device, precisions in (metric.get("device_metric") or {}).items():
            for precision, runtimes in precisions.items():
                for runtime, cell in runtimes.items():
                    here, float_ = cell["partial_metric"], metric["partial_torch_metric"]
                    words = f"{here:g}{unit} on {device}, {float_:g}{unit} in PyTorch"
                    if unit == "%" and here < float_:
                        words += f": {float_ - here:.1f} points lost"
                    yield f"{precision} {runtime}", f"{name} {words}"


def in_words(models: Sequence[HubModel], phones: Sequence[str], table: Forecasts) -> list[str]:
    lines = [f"measured on phones by AI Hub ({table.wheel.version}), not here"]
    devices = {table.phones[name].device: name for name in phones}
    for model in models:
        lines += ["", f"{model.name}: {model.use}" if model.use else model.name]
        cells = [
            (
                f"  {row.component or ''}",
                row.precision,
                devices[row.device],
                row.runtime,
                f"{row.milliseconds:.3f} ms",
                f"{row.layers} layers" + (f", {row.off_npu} not on the NPU" if row.off_npu else ""),
            )
            for row in model.measured
            if row.device in devices
        ]
        spoken = [
            (
                "  ",
                row.precision,
                devices[row.device],
                row.runtime,
                f"{row.tokens_per_second:.1f} tokens/s",
                f"prompt {prompt:,.0f} tokens/s" if (prompt := row.prompt_tokens_per_second) else "",
                f"context {row.context:,}",
            )
            for row in model.spoken
            if row.device in devices
        ]
        lines += [*aligned(cells), *aligned(spoken)] or ["  nothing on these phones"]
        lines += [f"  {kind}: {what}" for kind, what in model.accuracy.items()]
    return lines
