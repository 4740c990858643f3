"""Language models through the real compiler, the HTP emulator and Genie."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT
from tests.support.checkpoints import write_checkpoint

pytestmark = pytest.mark.heavy

TIMEOUT = 120


@dataclass
class Speaker:
    """A compiled model in a folder, with its configuration and the float model to hold it to."""

    folder: Path
    config: Path
    decoder: Any

    def choices(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """What float would say at each place of the text, and after it."""
        import torch

        from ci.llm.graphs import call

        context, example = self.decoder.context, self.decoder.example()
        named = dict(zip(self.decoder.inputs, example, strict=True))
        empty = {name: each.numpy() for name, each in named.items() if name.startswith("past_")}
        inputs = call(self.decoder.shape, context, context, [0, *prompt, *tokens], 0, empty)
        with torch.no_grad():
            logits = self.decoder(*(torch.from_numpy(inputs[name]) for name in self.decoder.inputs))[0][0]
        every: list[int] = logits.argmax(-1).tolist()
        return every[len(prompt) : 1 + len(prompt) + len(tokens)]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    from ci.llm.architecture import read_architecture
    from ci.llm.contexts import compile_context
    from ci.llm.decoder import load_decoder
    from ci.llm.genie import write_config
    from ci.llm.graphs import export
    from provisioning.manifest import soc_named

    model = write_checkpoint(tmp_path_factory.mktemp("model"))
    folder, shape, soc = tmp_path_factory.mktemp("compiled"), read_architecture(model), soc_named("SM8650")
    binaries = []
    for number, count in enumerate((32, 1)):
        graph = folder / f"ar{count}.onnx"
        export(load_decoder(model, shape, count, shape.context), graph)
        made, _ = compile_context(graph, soc, folder / f"compiled{count}", fp16=True, number=number)
        binaries.append(Path(shutil.move(made, folder / f"ar{count}.bin")))
    shutil.copy(model / "tokenizer.json", folder)
    config = write_config(folder, shape, binaries, soc, context=shape.context, most=12)
    return Speaker(folder, config, load_decoder(model, shape, shape.context, shape.context))


def test_genie_says_what_float_says(speaker: Speaker) -> None:
    from ci.llm.genie import speak

    generator = np.random.default_rng(4)
    prompts = [generator.integers(2, 256, length).tolist() for length in (1, 31, 32, 33)]
    for prompt, one in zip(prompts, speak(speaker.config, prompts, timeout=TIMEOUT), strict=True):
        *expected, following = speaker.choices(prompt, one.tokens)
        assert list(one.tokens) == expected
        assert (len(one.tokens), one.stopped) == (12, "length") or (following, one.stopped) == (1, "eos")


def changed(speaker: Speaker, folder: Path, where: str, value: Any) -> Path:
    copy = Path(shutil.copytree(speaker.folder, folder / "copy"))
    config = json.loads((copy / speaker.config.name).read_text())
    *path, name = where.split("/")
    place = config["dialog"]
    for each in path:
        place = place[each]
    if value is None:
        del place[name]
    else:
        place[name] = value
    (copy / speaker.config.name).write_text(json.dumps(config))
    return copy / speaker.config.name


def test_a_text_that_fills_the_context_says_so(speaker: Speaker, tmp_path: Path) -> None:
    from ci.llm.genie import speak

    config = changed(speaker, tmp_path, "max-num-tokens", 500)
    again = changed(Speaker(config.parent, config, None), tmp_path / "endless", "context/eos-token", 255)
    [one] = speak(again, [[65, 66]], timeout=TIMEOUT)
    assert one.stopped == "context" and len(one.tokens) == 128 - 3


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("engine/model/positional-encoding", None),
        ("engine/model/positional-encoding/rope-dim", 8),
        ("context/size", 256),
        ("sampler", None),
    ],
)
def test_what_genie_refuses_is_an_error_in_its_words(
    speaker: Speaker, tmp_path: Path, where: str, value: Any
) -> None:
    from ci.llm.genie import speak

    with pytest.raises(CheckFailed, match="Genie"):
        speak(changed(speaker, tmp_path, where, value), [[65]], timeout=TIMEOUT)


def test_a_wrong_rope_is_heard(speaker: Speaker, tmp_path: Path) -> None:
    """Genie says nothing of it, so that the words must show it."""
    from ci.llm.genie import speak

    wrong = changed(speaker, tmp_path, "engine/model/positional-encoding/rope-theta", 100)
    prompt = list(range(60, 77))
    [one] = speak(wrong, [prompt], timeout=TIMEOUT)
    assert list(one.tokens) != speaker.choices(prompt, one.tokens)[:-1]


class TestCommand:
    def run(self, *arguments: str | Path, store: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ci", "test_llm", *map(str, arguments)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,
            env={**os.environ, "QNN_CI_STORE": str(store)},
        )

    @pytest.mark.whole
    @pytest.mark.timeout(1800)
    def test_the_tiny_llama_speaks_and_is_remembered(self, tmp_path: Path) -> None:
        first = self.run("--reports", tmp_path / "reports", store=tmp_path / "store")
        assert first.returncode == 0, first.stdout + first.stderr
        report = json.loads((tmp_path / "reports" / "test_llm.json").read_text())
        rows = report["metrics"]["programs"]
        assert set(rows) == {"tiny/genie-fp16/SM8650", "tiny/genie-u16u8/SM8650"}
        assert all(text["text"] == text["float"] for text in rows["tiny/genie-fp16/SM8650"]["texts"])
        again = self.run("--reports", tmp_path / "reports", store=tmp_path / "store")
        assert again.returncode == 0 and "2 cached, 0 to do" in again.stderr


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "rope_scaling": None}),
        ("qwen2", {"architectures": ["Qwen2ForCausalLM"], "rope_scaling": None, "head_dim": 16}),
        ("qwen3", {"architectures": ["Qwen3ForCausalLM"], "rope_scaling": None}),
    ],
)
def test_our_reader_agrees_with_transformers(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    import torch

    from ci.llm.architecture import read_architecture
    from ci.llm.decoder import load_decoder
    from ci.llm.graphs import call
    from ci.llm.reference import load_reference, logits_of

    model = write_checkpoint(tmp_path, model_type=kind, **changes)
    shape = read_architecture(model)
    decoder = load_decoder(model, shape, shape.context, shape.context)
    tokens = np.random.default_rng(5).integers(0, 256, shape.context).tolist()
    example = dict(zip(decoder.inputs, decoder.example(), strict=True))
    empty = {name: each.numpy() for name, each in example.items() if name.startswith("past_")}
    inputs = call(shape, shape.context, shape.context, tokens, 0, empty)
    with torch.no_grad():
        logits = decoder(*(torch.from_numpy(inputs[name]) for name in decoder.inputs))[0][0].numpy()
    assert np.abs(logits - logits_of(load_reference(model), tokens)).max() < 1e-3
