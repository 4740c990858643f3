"""Faults of language models, each planted on purpose: does a verdict fall?
The table is in docs/llm.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.engine.work import Failure, Result
from ci.lanes.llm.config import read_architecture
from ci.lanes.llm.suite import SUITES, Limits, LlmProgram
from ci.lanes.llm.verdicts import LIMITS, findings_of
from ci.lanes.llm.work import environment, setup_of
from ci.pipeline.installed import ready_environment
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Report, Severity
from provisioning.base.settings import ROOT, Selection, store_path
from tests.support.checkpoints import LLAMA_3_2, LLAMA_3_2_ROPE, write_checkpoint
from tests.support.drawn_checkpoints import PRECISIONS, layer_named, replayed
from tests.support.planted_decoders import FAULTS, WAYS, kept_by_compile, unnamed, write_texts
from tests.support.speakers import (
    DECODE,
    PREFILL,
    TIMEOUT,
    Speaker,
    changed,
    make_speaker,
)
from tests.support.typed import typed

LAYERS = 2
"""With one, what prefill sees decides of one token alone, for its keys and values do not depend on it."""

FAR = 600
"""Tokens before a text; with the text and the beginning they fit into a context of 640."""

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return make_speaker(tmp_path_factory.mktemp("speaker"), layers=LAYERS)


READERS = ("HTP against the CPU", "HTP", "the CPU", "Genie")


def verdict_of(word: str, facts: Callable[[LlmProgram], dict[str, Any]], **changes: Any) -> str:
    """The rules of test_llm's errors about a program of its suite, and what they are of. `changes` are of its
    run."""
    [program] = SUITES.choose(SUITES.all_programs([]), words=[f"tiny/{word}/"])
    program = replace(program, run=program.run.model_copy(update=changes))
    try:
        result = Result(facts(program))
    except CheckFailed as error:
        result = Result(failure=Failure("refused", error.message))
    errors = [finding for finding in findings_of(program, result) if finding.severity is Severity.ERROR]
    rules = ", ".join(sorted({f"`{finding.rule}`" for finding in errors})) or "none"
    found = {next((reader for reader in READERS if reader in error.message), "") for error in errors}
    readers = [reader for reader in READERS if reader in found]
    return f"{rules} ({', '.join(readers)})" if readers else rules


def texts_verdict(speaker: Speaker, config: Path | None = None, **lengths: Any) -> str:
    return verdict_of("genie-fp16", lambda program: {"texts": speaker.texts(config, **lengths)})


def require_documented(fault: str, where: str, verdict: str) -> None:
    page = (ROOT / "docs" / "llm.md").read_text(encoding="utf-8").splitlines()
    row = f"| {fault} | {where} | {verdict} |"
    assert row in page, f"docs/llm.md says otherwise than: {row}"


def test_a_right_model_has_no_problem(speaker: Speaker) -> None:
    assert texts_verdict(speaker) == "none"


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
    found = texts_verdict(speaker, changed(speaker, tmp_path, key, value))
    require_documented(fault, "configuration", found)


def test_a_wrong_factor_of_slow_turns_is_heard_far_from_the_start(tmp_path: Path) -> None:
    """Scaled are turns of more than 512 places."""
    slow = LLAMA_3_2 | {"original_max_position_embeddings": 2048}
    speaker = make_speaker(tmp_path, layers=LAYERS, max_position_embeddings=FAR + 40, rope_scaling=slow)
    wrong = changed(speaker, tmp_path, f"{ROPE}/rope-scaling/factor", 8.0)
    assert texts_verdict(speaker, lengths=[FAR]) == "none"
    found = texts_verdict(speaker, wrong, lengths=[FAR])
    require_documented(f"rope scaled by another factor, after {FAR} tokens", "configuration", found)


def test_a_wrong_end_is_heard(speaker: Speaker, tmp_path: Path) -> None:
    """Of a text that float ends: its last token is taken for the end."""
    token = speaker.choices(list(range(60, 65)), [])[-1]
    found = texts_verdict(speaker, changed(speaker, tmp_path, "context/eos-token", token))
    require_documented("another token as the end", "configuration", found)


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
            x, mask, cos, sin, *(tensor * 0 for tensor in cache)
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
    found = texts_verdict(make_speaker(tmp_path, plant, layers=LAYERS))
    shutil.rmtree(tmp_path)
    require_documented(plant.fault, "graph", found)


@pytest.mark.parametrize(
    ("fault", "scaling"),
    [("rope without its scaling", None), ("rope scaled by another factor", LLAMA_3_2 | {"factor": 8.0})],
)
def test_a_rope_of_our_reader_that_only_far_positions_show(
    tmp_path: Path, fault: str, scaling: dict[str, Any] | None
) -> None:
    from ci.lanes.llm.reference import load_reference, require_rope

    model = write_checkpoint(tmp_path, **LLAMA_3_2_ROPE)
    right = read_architecture(model)
    reference = load_reference(model)
    require_rope(reference, right, 4000)
    with pytest.raises(CheckFailed, match="rope"):
        require_rope(reference, replace(right, rope_scaling=scaling), 4000)
    require_documented(fault, "our reader", "cosines and sines")


def train(folder: Path) -> Path:
    """The tiny model of the suite, from nothing, in a process of its own."""
    from ci.engine.workers.parent import Worker

    worker = Worker(setup_of("train", folder / "logs", 900))
    try:
        reply = worker.ask({"do": "train", "into": str(folder / "model"), "log": ""})
    finally:
        worker.end()
    assert "error" not in reply, reply
    return folder / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained"))


def test_training_again_gives_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    again = train(tmp_path)
    for file in trained.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name


@pytest.mark.needs("qemu-x86_64")
def test_another_kind_of_processor_trains_the_same_bytes(tmp_path: Path) -> None:
    """Ours, and one with other instructions, of which an emulator computes a few steps."""
    script = (
        "import sys, pathlib; from ci.lanes.llm.tiny import train; train(pathlib.Path(sys.argv[1]), steps=3)"
    )
    setup = setup_of("train", tmp_path, 900)
    for folder, command in (("ours", []), ("other", ["qemu-x86_64", "-cpu", "Haswell"])):
        subprocess.run(
            [*command, sys.executable, "-c", script, str(tmp_path / folder)],
            cwd=ROOT,
            env=dict(setup.environment),
            check=True,
        )
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("ours", "other")]
    assert weights[0] == weights[1]


def louder(trained: Path, folder: Path, token: int = 0) -> Path:
    """The values of a token, without another of the one that begins a text, are 30 times as large, as large
    models have them."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(trained, folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][token] *= 30
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return folder


FEW_WINDOWS, ALL_WINDOWS = 2, 8


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The verdict on a trained model as the suite's u16u8 program, by fewer prefixes and, unless all are
    asked for, fewer windows. Its texts are not judged, and so not generated."""
    from ci.lanes.llm import measure, steps

    assert measure.JUDGED_WINDOWS == ALL_WINDOWS
    monkeypatch.setattr(steps, "PREFIXES", 40)
    monkeypatch.setattr(steps, "texts", lambda *_: ([], {}))

    def verdict(model: Path, windows: int = FEW_WINDOWS, **changes: Any) -> str:
        if windows != ALL_WINDOWS:
            # Its limits are too near to what so few give.
            changes["htp_against_cpu"] = None
        monkeypatch.setattr(measure, "JUDGED_WINDOWS", windows)

        def facts(program: LlmProgram) -> dict[str, Any]:
            order = {"run": program.run.model_dump(mode="json"), "soc": program.soc, "timeout": TIMEOUT}
            return steps.order_genie({**order, "model": model, "into": tempfile.mkdtemp(dir=tmp_path)})

        return verdict_of("genie-16a8w", facts, **changes)

    return verdict


def test_a_right_quantized_model_has_no_problem(trained: Path, quantized: Callable[..., str]) -> None:
    assert quantized(trained, ALL_WINDOWS) == "none"


def test_calibration_that_never_saw_the_beginning(
    trained: Path, tmp_path: Path, quantized: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ci.lanes.llm.measure import ProgramFolders

    model, right = louder(trained, tmp_path / "louder"), ProgramFolders.calibration
    # The suite's limits are the tiny model's own, and this one quantizes worse.
    limits = Limits.model_validate(LIMITS["u16u8"])
    assert quantized(model, limits=limits) == "none"

    def others(self: ProgramFolders) -> list[list[int]]:
        return [[5 if token == self.shape.bos else token for token in row] for row in right(self)]

    monkeypatch.setattr(ProgramFolders, "calibration", others)
    found = quantized(model, limits=limits)
    require_documented("calibration without the beginning", "quantizing, u16u8", found)


def as_reciprocal(monkeypatch: pytest.MonkeyPatch) -> None:
    from ci.lanes.llm.decoder import Norm

    def reciprocal(self: Any, x: Any) -> Any:
        return x * ((x * x).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight

    monkeypatch.setattr(Norm, "forward", reciprocal)


def one_place_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from ci.lanes.llm.contexts import ContextReader

    right = ContextReader._call

    def slipped(self: ContextReader, inputs: Any) -> Any:
        for name, cache in self._caches.items():
            cache[...] = np.roll(cache, 1, 3 if "_key_" in name else 2)
        return right(self, inputs)

    monkeypatch.setattr(ContextReader, "_call", slipped)


@pytest.mark.parametrize(
    ("fault", "where", "plant", "windows"),
    [
        ("RMSNorm by reciprocal", "graph, u16u8", as_reciprocal, ALL_WINDOWS),
        ("cache one place off with each block", "our reader, u16u8", one_place_off, FEW_WINDOWS),
    ],
)
def test_of_a_quantized_model(
    trained: Path,
    quantized: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    where: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    windows: int,
) -> None:
    plant(monkeypatch)
    require_documented(fault, where, quantized(trained, windows))


def checked(model: Path, folder: Path) -> str:
    """The verdict of `check` on a checkpoint compiled with what is planted in this process alone."""
    from ci.lanes.llm.checkpoint_compile import order_compile
    from ci.lanes.llm.genie import RECORD

    out = folder / "out"
    out.mkdir()
    write_texts(model, folder)
    order = {"model": str(model), "soc": "SM8650", "precision": "u16u8", "context": 128, "prefill": 32}
    order |= {"parts": 1, "shared": False, "adapter": "", "calibrate": str(folder / "calibration.txt")}
    order_compile({**order, "into": str(out)})
    kept = kept_by_compile(model, folder / "calibration.txt", "genie", "u16u8")
    record = {**order, "checkpoint": str(model), "calibrated by": [], "files": {}, **kept}
    (out / RECORD).write_text(json.dumps(record))
    reports, text = folder / "reports", folder / "judged.txt"
    ended = typed("check", out, "--text", text, "--reports", reports, timeout=TIMEOUT)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    missed = [
        finding.message
        for finding in Report.read(reports / "check.json").findings
        if finding.severity is Severity.ERROR and " against " not in finding.message
    ]
    found = [reader for reader in READERS if any(reader in message for message in missed)]
    return f"`check` ({', '.join(found)})" if ended.returncode else "none"


def no_change(decoder: Any) -> None:
    pass


def without_scale(decoder: Any) -> None:
    """Of the second layer's attention: as if nothing divided the scores by the root of a head's size."""
    import torch

    attention = decoder.layers["1"].self_attn
    attention.q_proj.weight = torch.nn.Parameter(attention.q_proj.weight * decoder.shape.head_dim**0.5)


def with_another_eps(decoder: Any) -> None:
    from ci.lanes.llm.decoder import Norm

    for module in decoder.modules():
        if isinstance(module, Norm):
            module.eps *= 100


def in_blocks_of_four_bits(decoder: Any) -> None:
    import torch

    for layer in decoder.layers.values():
        weight = layer.mlp.down_proj.weight
        blocks = weight.reshape(-1, 32)
        scale = blocks.abs().amax(1, keepdim=True) / 7
        layer.mlp.down_proj.weight = torch.nn.Parameter(((blocks / scale).round() * scale).view_as(weight))


@pytest.mark.parametrize(
    ("fault", "plant"),
    [
        ("", no_change),
        ("no scale in one layer's attention", without_scale),
        ("RMSNorm's eps times 100", with_another_eps),
        ("blocks of 4 bits in each down_proj", in_blocks_of_four_bits),
    ],
)
def test_what_a_users_quantized_checkpoint_may_lose_is_what_rounding_costs(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    plant: Callable[[Any], None],
) -> None:
    from ci.lanes.llm import checkpoint_compile
    from ci.lanes.llm.decoder import load_decoder

    def planted(*arguments: Any) -> Any:
        decoder = load_decoder(*arguments)
        plant(decoder)
        return decoder

    monkeypatch.setattr(checkpoint_compile, "load_decoder", planted)
    found = checked(trained, tmp_path)
    if fault:
        require_documented(fault, "graph, u16u8", found)
    else:
        assert found == "none"


def test_a_token_of_chats_that_calibration_never_saw(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that ends a turn: plain text has none of them."""
    from ci.lanes.llm import measure, prompts

    model = louder(trained, tmp_path / "louder", token=1)
    (tmp_path / "right").mkdir()
    assert checked(model, tmp_path / "right") == "none"
    monkeypatch.setattr(measure, "CHAT_PLACE", 9999)
    monkeypatch.setattr(prompts, "SPECIAL_PLACES", 0)
    require_documented("calibration without the end of turns", "quantizing, u16u8", checked(model, tmp_path))


def replies_of(module: str, through: str, folder: Path, *words: object) -> list[dict[str, Any]]:
    """What a module of tests/support writes, in a process of its own: two QNNs do not fit into one."""
    variables = environment()
    if through == "executorch":
        selection = Selection("wheels", "x86_64-linux", "SM8650", store_path(), folder / "reports")
        variables = environment(ready_environment(selection, os.environ))
    ended = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", *map(str, words)],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("way", WAYS)
def test_ten_faults_fall_at_every_way_and_the_part_is_named(trained: Path, tmp_path: Path, way: str) -> None:
    replies = replies_of("planted_decoders", WAYS[way].through, tmp_path, way, trained, tmp_path)
    verdicts = {reply["fault"]: reply["errors"] for reply in replies}
    assert list(verdicts) == list(FAULTS) and not verdicts.pop("none")
    assert not [problem for fault, errors in verdicts.items() if (problem := unnamed(fault, way, errors))]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("through", PRECISIONS)
def test_two_checkpoints_drawn_each_day_pass_and_a_fault_falls(tmp_path: Path, through: str) -> None:
    """Of the faults that docs/llm.md counts some are below the noise, so one of two may be missed."""
    today = date.today().toordinal()
    lines = replies_of("drawn_checkpoints", through, tmp_path, through, tmp_path, 2 * today, 2 * today + 1)
    assert [line["fault"] == "none" for line in lines] == [True, False] * 2
    assert all(line["code"] == bool(replayed(line)) for line in lines)
    assert not [line for line in lines if line["fault"] == "none" and line["code"]]
    found = [line for line in lines if line["fault"] != "none" and line["code"]]
    assert found and all(layer_named(line) in ("", "right") for line in found)
