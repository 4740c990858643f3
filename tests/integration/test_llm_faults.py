"""Faults of language models, each planted on purpose: does a verdict fall?
The table is in docs/llm-verdicts.md."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT
from tests.support.checkpoints import LLAMA_3_2
from tests.support.speakers import DECODE, PREFILL, Speaker, changed, make_speaker

LAYERS = 2
"""With one, what prefill sees decides of one token alone, for its keys and values do not depend on it."""

FAR = 600
"""Tokens before a text; with the text and the beginning they fit into a context of 640."""

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return make_speaker(tmp_path_factory.mktemp("speaker"), layers=LAYERS)


def row(fault: str, where: str, verdict: str) -> str:
    return f"| {fault} | {where} | {verdict} |"


def verdict_of(speaker: Speaker, config: Path | None = None) -> str:
    try:
        return "`llm-text`" if speaker.problems(config) else "none"
    except CheckFailed:
        return "`llm-refused`"


def require_documented(*rows: str) -> None:
    page = (ROOT / "docs" / "llm-verdicts.md").read_text(encoding="utf-8").splitlines()
    missing = [each for each in rows if each not in page]
    assert not missing, "docs/llm-verdicts.md says otherwise than:\n" + "\n".join(missing)


def test_a_right_model_has_no_problem(speaker: Speaker) -> None:
    assert not speaker.problems()


ROPE = "engine/model/positional-encoding"


@pytest.mark.parametrize(
    ("fault", "key", "value"),
    [
        ("rope of another base", f"{ROPE}/rope-theta", 10000),
        ("rope without its scaling", f"{ROPE}/rope-scaling", None),
        ("rope scaled by another factor", f"{ROPE}/rope-scaling/factor", 32.0),
        ("another token at the beginning", "context/bos-token", 5),
        ("sampling at random", "sampler", {"version": 1, "seed": 1, "temp": 3.0, "top-k": 50, "top-p": 1.0}),
        ("rope of another width", f"{ROPE}/rope-dim", 8),
    ],
)
def test_of_the_configuration(speaker: Speaker, tmp_path: Path, fault: str, key: str, value: Any) -> None:
    found = verdict_of(speaker, changed(speaker, tmp_path, key, value))
    assert found != "none"
    require_documented(row(fault, "configuration", found))


def test_a_wrong_factor_of_slow_turns_is_heard_far_from_the_start(tmp_path: Path) -> None:
    """Scaled are turns of more than 512 places."""
    slow = LLAMA_3_2 | {"original_max_position_embeddings": 2048}
    speaker = make_speaker(tmp_path, layers=LAYERS, max_position_embeddings=FAR + 40, rope_scaling=slow)
    wrong = changed(speaker, tmp_path, f"{ROPE}/rope-scaling/factor", 8.0)
    assert not speaker.problems(lengths=[FAR]) and speaker.problems(wrong, lengths=[FAR])
    require_documented(
        row(f"rope scaled by another factor, after {FAR} tokens", "configuration", "`llm-text`")
    )


def test_calibration_that_never_saw_the_beginning(tmp_path: Path) -> None:
    from ci.llm.architecture import read_architecture
    from ci.llm.contexts import Reader, on_cpu
    from ci.llm.decoder import load_decoder
    from ci.llm.graphs import edge_encodings, export, outputs_of, quantize, samples, shared_encodings
    from ci.llm.measure import figures_on
    from ci.llm.reference import load_reference
    from tests.support.checkpoints import write_checkpoint

    model = write_checkpoint(tmp_path / "model", loudness=100)
    shape = read_architecture(model)
    generator = np.random.default_rng(6)
    rows = [[0, *generator.integers(2, 256, shape.context - 1).tolist()] for _ in range(6)]
    whole = load_decoder(model, shape, shape.context, shape.context)
    export(load_decoder(model, shape, 32, shape.context), tmp_path / "plain.onnx")

    def agreement(calibration: list[list[int]]) -> float:
        encodings = shared_encodings((outputs_of(whole, row) for row in calibration), "uint8")
        inputs, graph = samples(whole, calibration, shape.context, 32), tmp_path / "graph.onnx"
        plain = tmp_path / "plain.onnx"
        quantize(plain, inputs, graph, activations="QUInt16", weights="QUInt8", encodings=encodings)
        reader = Reader(shape, [on_cpu(graph)], edge_encodings(graph))
        figures = figures_on(rows[:2], load_reference(model), {"prefill_cpu": reader})
        return float(figures["prefill_cpu"]["first_choice"]["value"])

    right, wrong = agreement(rows[2:]), agreement([[*row[1:], 5] for row in rows[2:]])
    assert right > 0.7 > wrong, f"with the beginning {right:.3f}, without {wrong:.3f}"
    require_documented(row("calibration without the beginning", "quantizing, u16u8", "`llm-accuracy`"))


def test_a_wrong_end_is_heard(speaker: Speaker, tmp_path: Path) -> None:
    """Of a text that float ends: its last token is taken for the end."""
    token = speaker.choices(list(range(60, 65)), [])[-1]
    found = verdict_of(speaker, changed(speaker, tmp_path, "context/eos-token", token))
    assert found != "none"
    require_documented(row("another token as the end", "configuration", found))


@dataclass(frozen=True)
class Plant:
    """A change of a graph; `counts` are the graphs that get it."""

    fault: str
    change: str
    counts: tuple[int, ...] = (PREFILL, DECODE)

    def __call__(self, decoder: Any, count: int) -> None:
        if count in self.counts:
            getattr(self, self.change)(decoder)

    def swap(self, decoder: Any) -> None:
        attention = decoder.layers["0"].self_attn
        attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj

    def reseed(self, decoder: Any) -> None:
        import torch

        generator = torch.Generator().manual_seed(9)
        weight = decoder.layers["0"].mlp.down_proj.weight
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)

    def shift(self, decoder: Any) -> None:
        """The last token sees itself no more, and the first place of the cache is seen when it is empty."""
        before = decoder.forward
        decoder.forward = lambda x, mask, *rest: before(x, mask.roll(1, -1), *rest)

    def forget(self, decoder: Any) -> None:
        before = decoder.forward
        decoder.forward = lambda x, mask, cos, sin, *cache: before(
            x, mask, cos, sin, *(each * 0 for each in cache)
        )


@pytest.mark.parametrize(
    "plant",
    [
        Plant("keys and values swapped", "swap"),
        Plant("a layer of another model", "reseed"),
        Plant("mask off by one in prefill", "shift", (PREFILL,)),
        Plant("mask off by one in decode", "shift", (DECODE,)),
        Plant("cache not carried on in decode", "forget", (DECODE,)),
        Plant("cache not carried on in prefill", "forget", (PREFILL,)),
    ],
    ids=lambda plant: plant.fault,
)
def test_of_the_graph_at_fp16(tmp_path: Path, plant: Plant) -> None:
    found = verdict_of(make_speaker(tmp_path, plant, layers=LAYERS))
    shutil.rmtree(tmp_path)
    assert found != "none"
    require_documented(row(plant.fault, "graph", found))


def test_rmsnorm_as_a_reciprocal_is_seen_on_htp_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At u16u8, where the CPU computes it well and HTP does not."""
    from ci.llm import decoder as decoders
    from ci.llm.architecture import read_architecture
    from ci.llm.contexts import Reader, compile_context, load_context, on_cpu
    from ci.llm.graphs import edge_encodings, export, outputs_of, quantize, samples, shared_encodings
    from provisioning.manifest import soc_named
    from tests.support.checkpoints import write_checkpoint

    model = write_checkpoint(tmp_path / "model")
    shape = read_architecture(model)
    generator = np.random.default_rng(6)
    rows = [[0, *generator.integers(2, 256, shape.context - 1).tolist()] for _ in range(5)]
    whole = decoders.load_decoder(model, shape, shape.context, shape.context)
    encodings = shared_encodings((outputs_of(whole, row) for row in rows[1:]), "uint8")

    def agreement(name: str) -> float:
        """Of HTP with the same quantized graph on the CPU."""
        plain, graph = tmp_path / f"{name}.onnx", tmp_path / f"{name}_qdq.onnx"
        export(decoders.load_decoder(model, shape, 32, shape.context), plain)
        calibration = samples(whole, rows[1:], shape.context, 32)
        quantize(plain, calibration, graph, activations="QUInt16", weights="QUInt8", encodings=encodings)
        soc, binary, edges = soc_named("SM8650"), tmp_path / f"{name}_htp.bin", edge_encodings(graph)
        compile_context({0: graph}, soc, binary, fp16=False)
        session = load_context(binary.with_suffix(".onnx"), soc)
        ours, theirs = (Reader(shape, [each], edges).read(rows[0]) for each in (session, on_cpu(graph)))
        return float((ours.argmax(-1) == theirs.argmax(-1)).mean())

    divided = agreement("division")

    def reciprocal(self: Any, x: Any) -> Any:
        return x * ((x * x).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight

    monkeypatch.setattr(decoders.Norm, "forward", reciprocal)
    multiplied = agreement("reciprocal")
    assert divided > 0.9 > multiplied, f"division {divided:.3f}, reciprocal {multiplied:.3f}"
    require_documented(row("RMSNorm by reciprocal", "graph, u16u8", "`llm-accuracy` on HTP"))
