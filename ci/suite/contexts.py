"""A QNN context binary runs elsewhere, such as on a hosted phone: what its runner gets and gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.artifacts.context_graph import ContextTensor
from ci.work import Failure
from provisioning.base.rendering import plural
from provisioning.base.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextJob:
    """One program of which the only context is to run."""

    program: str
    """The program's name, by which the outcome is found."""
    context: Path
    soc: str
    """The chip that the context is for, as manifests/socs.toml names it."""
    build_id: str
    """The QNN build that made the context."""
    inputs: tuple[ContextTensor, ...]
    """They are in the order of the context's graph."""
    samples: tuple[tuple[Path, ...], ...]
    """Each sample has a raw file for each input, in the same order, dtype and shape."""
    outputs: tuple[ContextTensor, ...]
    device: str
    """The name of the device that the user wants, such as `Galaxy S25`."""
    profile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextProfile:
    latency_us: float
    """The median of all measured inferences."""
    spread_us: float
    """The difference of the third and the first quartile."""
    peak_bytes: int | None = None
    load_us: float | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    """Maps a unit, such as NPU or CPU, to the number of layers that it ran."""

    def __str__(self) -> str:
        words = [f"{self.latency_us / 1000:.4g} ms (quartiles {self.spread_us / 1000:.4g} ms apart)"]
        words += [f"{size(self.peak_bytes)} at most"] if self.peak_bytes else []
        words += [f"loaded in {self.load_us / 1000:.4g} ms"] if self.load_us else []
        words += [f"{plural(count, 'layer')} on {unit}" for unit, count in self.layers.items()]
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRun:
    outputs: Path
    """The folder has `Result_N/NAME.raw` of each sample, numbered from 0, as qnn-net-run writes them."""
    device: str
    build_id: str
    """The QNN runtime that ran it."""
    profile: ContextProfile | None = None


ContextOutcome = ContextRun | Failure

RunContexts = Callable[[Sequence[ContextJob], Path], Mapping[str, ContextOutcome]]
"""Runs contexts and writes their outputs below the folder. Returns the outcome of each program by name."""
