"""A row that a user adds to a matrix: four models at three precisions for two chips, cold and unchanged.

The aim is for two cores. The two chips of a run share all that comes before QNN's compiler, which is most
of a compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from lab.bench.frame import Aim, Benchmark
from lab.bench.gate import COLD, PLAIN, WARM, benchmark_of

AIMS = (Aim(COLD, PLAIN, 2.6), Aim(WARM, 12.0))
MODELS = {
    "resnet10": "vision:resnet",
    "keywords": "audio:keywords",
    "vit": "vision:vit",
    "llama": "language:llama_prefill",
}
PRECISIONS = ("fp16", "8a8w", "16a8w")
CHIPS = ("SM8650", "SM8750")


def prepared(work: Path) -> AbstractContextManager[Benchmark]:
    suite = work / "matrix.toml"
    suite.write_text("\n".join(_lines()), encoding="utf-8")
    return benchmark_of(work, suite, AIMS)


def _lines() -> Iterator[str]:
    yield "schema = 2"
    for name, model in MODELS.items():
        yield f'[case.{name}]\nfactory = "ci.models.shipped.{model}"'
        for precision in PRECISIONS:
            chips = ", ".join(f'"{chip}"' for chip in CHIPS)
            yield f'[[case.{name}.run]]\nlane = "executorch"\nprecision = "{precision}"\nsocs = [{chips}]'
            # How near the outputs are to float is not what is measured.
            yield "thresholds = { sqnr_db = 0.0 }"
