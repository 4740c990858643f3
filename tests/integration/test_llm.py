"""Language models through the real compiler, the HTP emulator and Genie."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # first: who imports transformers without it has none of its models

from ci.__main__ import VERBS
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    KINDS,
    RECORD,
    CompileOrder,
    JudgedText,
    MeasureOrder,
    record_of,
)
from ci.lanes.llm.stage import WORKER, environment, home_of
from ci.lanes.llm.suite import SUITES
from ci.plain import as_json
from ci.suite.stage import ready_environment
from ci.work import asking
from provisioning.base.command_line import main
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import ROOT, Selection, store_path
from provisioning.base.units import EXACT_DB
from tests.support.checkpoints import LLAMA_3_2, LLAMA_3_2_ROPE, write_checkpoint
from tests.support.drawn_checkpoints import named_layer
from tests.support.sdk import sdk_root
from tests.support.speakers import (
    LENGTH,
    NEAR_TIE,
    TIMEOUT,
    Speaker,
    changed,
    make_speaker,
)
from tests.support.typed import typed

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return make_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("where", "value", "key"),
    [
        ("engine/model/positional-encoding", None, "rope-dim"),
        ("context/size", 256, "context.size"),
        ("sampler", None, "sampler"),
    ],
)
def test_what_genie_refuses_is_explained_by_the_key_to_change(
    speaker: Speaker, tmp_path: Path, where: str, value: Any, key: str
) -> None:
    from ci.lanes.llm.genie import generate

    with pytest.raises(CheckFailed) as error:
        generate(changed(speaker, tmp_path, where, value), [65], LENGTH, timeout=TIMEOUT)
    assert key in error.value.fix


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3's tokenizer splits text. Upstream's parser says an error of it, and takes another parser."""
SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


@pytest.mark.whole
def test_a_chat_is_the_same_tokens_to_genie_and_to_upstreams_runner(speaker: Speaker, tmp_path: Path) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers

    from ci.lanes.llm.genie import encoded
    from ci.lanes.llm.tokenizer import chat_text, tokens_of, without_beginning

    config = changed(speaker, tmp_path, "max-num-tokens", 1)
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([(ROOT / "README.md").read_text()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)]
    )
    tokenizer.save(str(config.parent / "tokenizer.json"))
    names = {"bos_token": SPECIAL[0], "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (config.parent / "tokenizer_config.json").write_text(json.dumps(names))
    chat = chat_text(config.parent, "It's I'LL don't  12345 cafés\n\n x", "Be brief.")
    tokens = tokens_of(tokenizer, chat)
    assert tokens.count(0) == 1 and without_beginning(tokens, 0) == tokens[1:]
    assert chat.startswith(f"{SPECIAL[0]}{SPECIAL[2]}system") and chat.endswith(f"assistant{SPECIAL[3]}\n\n")
    assert encoded(config, [chat, "a  b"], timeout=TIMEOUT) == [tokens, tokens_of(tokenizer, "a  b")]
    upstream = (
        "import sys, pytorch_tokenizers; tokenizer = pytorch_tokenizers.CppHFTokenizer();"
        "tokenizer.load(sys.argv[1]); print(list(tokenizer.encode(sys.argv[2], 0, 0)))"
    )
    # In a process of its own: beside onnxruntime it crashes.
    ended = subprocess.run(
        [sys.executable, "-c", upstream, str(config.parent / "tokenizer.json"), chat],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    assert json.loads(ended.stdout.splitlines()[-1]) == tokens


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ raise_exception('no system here') }}", "no system here"),
        ("{% for message in messages %}", "endfor"),
        ("{{ messages[0]['content'] + 1 }}", "str"),
    ],
)
def test_a_template_that_raises_is_refused_in_a_line(tmp_path: Path, template: str, named: str) -> None:
    from ci.lanes.llm.tokenizer import chat_text

    folder = write_checkpoint(tmp_path)
    settings = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=named) as caught:
        chat_text(folder, "a", "b")
    assert "\n" not in caught.value.message


def command(*arguments: str | Path, code: int = 0, seconds: float = 600) -> str:
    ended = typed(*arguments, timeout=seconds)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


PLAIN: dict[str, Any] = {"rope_scaling": None, "head_dim": 16, "pad_token_id": 1}
PHI_4_MINI: dict[str, Any] = {
    **PLAIN,
    "tie_word_embeddings": True,
    "partial_rotary_factor": 0.75,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 128,
    "sliding_window": 262144,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
}

GEMMA_3: dict[str, Any] = {
    **PLAIN,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "rope_local_base_freq": 100.0,
    "query_pre_attn_scalar": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}


FAMILIES_BY_NAME: dict[str, tuple[str, dict[str, Any], str]] = {
    "Llama 3": ("llama", {}, "one head's values negated"),
    "Llama 3 with many words": ("llama", {"vocab_size": 8192}, "GELU in place of SiLU"),
    "Qwen 2.5": ("qwen2", PLAIN, "one layer's keys one place on"),
    "Qwen 3": ("qwen3", {"rope_scaling": None}, "rope backwards in one layer"),
    "Mistral without a window": (
        "mistral",
        {**PLAIN, "sliding_window": None},
        "keys and values of the other heads",
    ),
    "SmolLM 3": ("smollm3", {**PLAIN, "no_rope_layers": [0, 1]}, "embedding scaled by 1.5"),
    "Phi 4 mini": ("phi3", PHI_4_MINI, "gate and up projection swapped"),
    "OLMo 2": ("olmo2", {**PLAIN, "rope_theta": 20000.0}, "one layer's residual dropped"),
    "Gemma 3": ("gemma3_text", GEMMA_3, "rows of the head one off"),
}
"""With a fault for each, which is planted in a second compile. At 16a4w random weights hide another embedding
and keys one place on: rounding alone leaves 10 dB of the keys."""
WAYS = [("genie", "fp16"), ("genie", "16a8w"), ("executorch", "16a8w")]
OTHERS = ("Llama 3 with many words", "Qwen 2.5", "Qwen 3")
"""Of which fewer ways suffice."""
FAMILIES_AND_WAYS = [
    *((family, way) for family in FAMILIES_BY_NAME if family not in OTHERS for way in WAYS),
    ("Llama 3 with many words", ("genie", "fp16")),
    ("Llama 3 with many words", ("genie", "16a8w")),
    ("Llama 3 with many words", ("executorch", "8a8w")),
    ("Qwen 2.5", ("genie", "16a8w")),
    ("Qwen 3", ("genie", "16a4w")),
    ("Mistral without a window", ("executorch", "16a4w")),
]


def test_the_page_lists_the_families_and_precisions_that_are_tested() -> None:
    page = (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")
    for kind in {kind for kind, _, _ in FAMILIES_BY_NAME.values()}:
        cells = re.findall(rf"^\| `{kind}` \| [^|]+ \| ([^|]*)\| ([^|]*)\|$", page, re.MULTILINE)[0]
        ways = [way for family, way in FAMILIES_AND_WAYS if FAMILIES_BY_NAME[family][0] == kind]
        for through, cell in zip((GENIE, EXECUTORCH), cells, strict=True):
            expected = {precision for runtime, precision in ways if runtime == through}
            assert set(re.findall(r"\w+", cell)) == expected, (kind, through)


def compiled_with(fault: str, order: CompileOrder, reports: Path) -> None:
    """In a process of its own: two QNNs do not fit into one."""
    variables = environment()
    if order.through == EXECUTORCH:
        selection = Selection("wheels", "x86_64-linux", "SM8650", store_path(), reports)
        variables = environment(ready_environment(selection, os.environ))
    words = ["-m", "tests.support.planted_decoders", fault, json.dumps(as_json(order))]
    subprocess.run([sys.executable, *words], cwd=ROOT, env=variables, check=True)


@pytest.mark.whole
@pytest.mark.timeout(900)
class TestCompile:
    @pytest.mark.parametrize(
        ("kind", "changes"),
        [
            ("llama", {"tie_word_embeddings": True}),
            ("qwen3", {"rope_scaling": None}),
            ("gemma3_text", GEMMA_3),
        ],
    )
    def test_a_checkpoint_in_two_parts_says_what_float_says(
        self, tmp_path: Path, kind: str, changes: dict[str, Any]
    ) -> None:
        model = write_checkpoint(tmp_path / "model", model_type=kind, **{"num_hidden_layers": 2, **changes})
        in_shards(model)
        if kind == "qwen3":
            # No token begins a text, though config.json names one.
            (model / "tokenizer_config.json").write_text('{"add_bos_token": false}')
        out = tmp_path / "out"
        command("compile", model, "--soc", "SM8650", "--parts", "2", "-o", out)
        assert sum(file.suffix == ".bin" for file in out.iterdir()) == 4
        assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
        assert max(Speaker(out, out / "genie_config.json", model).lost(lengths=(8, 33))) < NEAR_TIE
        parts = command("check", out, "--text", ROOT / "README.md", "--tokens", "9", "--on", "parts")
        assert "prefill_0, " in parts and "decode_1, " in parts

    def test_what_was_compiled_in_more_parts_goes_and_the_users_files_stay(self, tmp_path: Path) -> None:
        model = write_checkpoint(tmp_path / "model", num_hidden_layers=2)
        out, outside = tmp_path / "out", tmp_path / "outside.txt"
        command("compile", model, "--parts", "2", "-o", out)
        (out / "notes.md").write_text("the user's own")
        outside.write_text("whatever a record names")
        record = record_of(out)
        outside_too = replace(record, files={**record.files, "../outside.txt": ""})
        (out / RECORD).write_text(outside_too.as_text())
        command("compile", model, "-o", out)
        assert outside.exists() and {"notes.md", "prefill_0.bin"} <= {file.name for file in out.iterdir()}
        assert not (out / "prefill_1.bin").exists()

    def test_a_quantized_checkpoint_speaks_and_a_short_text_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = write_checkpoint(tmp_path / "model", num_hidden_layers=2)
        out, text = tmp_path / "out", tmp_path / "text.txt"
        calibrated = ("--precision", "u16u8", "--calibrate", text)
        quantizing = ("compile", model, *calibrated, "--parts", "2", "-o", out)
        text.write_text("a few words")
        assert "12 windows" in command(*quantizing, code=1)
        assert {file.name for file in tmp_path.iterdir()} == {"model", "text.txt"}
        text.write_text((ROOT / "LICENSE").read_text()[:1400] * 2)
        command(*quantizing)
        assert "stopped by" in command("run", out, "The answer is", "--tokens", "4")
        check = ("check", out, "--tokens", "200", "--text")
        other = tmp_path / "other.txt"
        other.write_text(text.read_text()[200:700])
        assert "quantized by" in command(*check, other, code=2)
        other.write_text((ROOT / "README.md").read_text()[:1100])
        # As of a large model, of which the emulator loads the binaries of one kind at a time.
        monkeypatch.chdir(tmp_path)
        largest = max(sum(path.stat().st_size for path in out.glob(f"{kind}_*.bin")) for kind in KINDS)
        for bytes_loaded, code in ((largest, 0), (largest - 1, 2)):
            monkeypatch.setattr("ci.lanes.llm.genie.EMULATOR_BYTES", bytes_loaded)
            arguments = [*map(str, check), str(other), "--top1", "0.5"]
            assert main("python -m ci", "", {"check": VERBS["check"]}, arguments) == code
        config = json.loads((out / "genie_config.json").read_text())
        config["dialog"]["engine"]["model"]["positional-encoding"]["rope-theta"] = 100
        (out / "genie_config.json").write_text(json.dumps(config))
        assert "genie_config.json" in command(*check, other, code=1)

    @pytest.mark.parametrize(("family", "way"), FAMILIES_AND_WAYS)
    def test_each_family_passes_each_way_and_a_fault_in_it_is_found(
        self, tmp_path: Path, family: str, way: tuple[str, str]
    ) -> None:
        """A checkpoint in two files, by a text that it was not quantized by. Of random weights, in whose
        choices many words are nearly as good."""
        (kind, changes, fault), (through, precision) = FAMILIES_BY_NAME[family], way
        settings = {**changes, "model_type": kind, "num_hidden_layers": 2}
        model, out = write_checkpoint(tmp_path / "model", **settings), tmp_path / "out"
        text, other = tmp_path / "text.txt", tmp_path / "other.txt"
        text.write_text((ROOT / "LICENSE").read_text()[:1400] * 2)
        other.write_text((ROOT / "README.md").read_text()[:1100])
        flags: list[str | Path] = ["--through", through, "--precision", precision]
        in_shards(model)
        if precision != "fp16":
            flags += ["--calibrate", text]
        command("compile", model, *flags, "-o", out)
        # It holds the text, which may be secret.
        assert ("compiled.json" in (out / "README.md").read_text()) == (precision != "fp16")
        few = ("--text", other, "--tokens", "254", "--reports", tmp_path / "reports")
        sys.stdout.write(command("check", out, *few))
        wrong = tmp_path / "wrong"
        compiled_with(fault, replace(record_of(out).order, into=str(wrong)), tmp_path / "reports")
        said = command("check", wrong, *few, code=1)
        assert named_layer(said, fault, layers=2) in ("", "right"), said


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what executorch imports
def test_a_quantized_program_has_the_layout_of_upstreams_runner(tmp_path: Path) -> None:
    """By its own metadata: no runner is built here."""
    from executorch.runtime import Runtime

    model, out, text = write_checkpoint(tmp_path / "model"), tmp_path / "out", tmp_path / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text()[:1400] * 2)
    order = ("compile", model, "--precision", "16a8w", "--calibrate", text, "--through", "executorch")
    command(*order, "-o", out)
    assert "[1/1]" not in command(*order, "-o", out)
    program = Runtime.get().load_program(out / "hybrid_llama_qnn.pte")
    for method, count in (("prefill_forward", 32), ("kv_forward", 1)):
        layout = program.metadata(method)
        inputs = [layout.input_tensor_meta(index) for index in range(5)]
        outputs = [layout.output_tensor_meta(index) for index in range(3)]
        past = 128 - count
        caches = (1, 2, 32, past), (1, 2, past, 32)
        assert [x.sizes() for x in inputs] == [(1, count), (1, 1, count, 128), (1, count), *caches]
        assert [y.sizes() for y in outputs] == [(1, count, 256), (1, 2, 32, count), (1, 2, count, 32)]
        assert [x.dtype() for x in inputs] == [INT, UINT16, INT, UINT16, UINT16]
        assert [y.dtype() for y in outputs] == [UINT16] * 3
    assert program.load_method("get_kv_io_bit_width").execute([]) == [16]
    assert program.load_method("get_logits_scale").execute([])[0] > 0


INT, UINT16 = 3, 27
"""ExecuTorch's numbers of types."""


def in_shards(model: Path, others: Mapping[str, Any] | None = None) -> None:
    """The weights in two files with an index, as large checkpoints come; `others` is what it also has."""
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(weights)
    index = {name: f"model-{1 + (number % 2)}.safetensors" for number, name in enumerate(names)}
    for file in set(index.values()):
        save_file({name: weights[name] for name in names if index[name] == file}, model / file)
    whole = {**({"metadata": {}} if others is None else others), "weight_map": index}
    (model / "model.safetensors.index.json").write_text(json.dumps(whole))


class TestCommand:
    def run(self, *arguments: str | Path, store: Path) -> subprocess.CompletedProcess[str]:
        return typed(
            "test_llm",
            *arguments,
            env={**os.environ, "QNN_CI_STORE": str(store), "QNN_SDK_ROOT": str(sdk_root())},
            timeout=3000,
        )

    @pytest.mark.whole
    @pytest.mark.timeout(6500)
    def test_the_tiny_llama_speaks_and_is_remembered(self, tmp_path: Path) -> None:
        first = self.run("--reports", tmp_path / "reports", store=tmp_path / "store")
        assert first.returncode == 0, first.stdout + first.stderr
        report = json.loads((tmp_path / "reports" / "test_llm.json").read_text())
        rows = report["metrics"]["programs"]
        assert set(rows) == {program.name for program in SUITES.all_programs([])}
        assert all("decode_htp" in row["figures"] for row in rows.values())
        again = self.run("--reports", tmp_path / "reports", store=tmp_path / "store")
        counts = re.findall(r"(\d+) cached, (\d+) to do", again.stderr)
        assert again.returncode == 0 and counts and all(to_do == "0" for _, to_do in counts)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from ci.lanes.llm.architecture import read_architecture
    from ci.lanes.llm.decoder import load_decoder, require_halves
    from ci.lanes.llm.weights import require_tensors

    model = write_checkpoint(tmp_path)
    shape = read_architecture(model)
    with pytest.raises(CheckFailed, match="gate_proj"):
        load_decoder(model, shape.model_copy(update={"intermediate_size": 64}), 1, 128)
    with pytest.raises(CheckFailed, match=r"model\.layers\.1"):
        load_decoder(model, shape.model_copy(update={"num_layers": 2}), 1, 128)
    weights = {name: data.to(torch.bfloat16) for name, data in load_file(model / "model.safetensors").items()}
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = 1e6
    save_file(weights, model / "model.safetensors")
    with pytest.raises(CheckFailed, match="fp16"):
        require_halves(load_decoder(model, shape, 1, 128))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weights["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
        save_file({name: data.to(dtype) for name, data in weights.items()}, model / "model.safetensors")
        with pytest.raises(CheckFailed, match=r"down_proj.*NaN"):
            require_tensors(model, shape)


def test_rope_is_held_to_that_of_transformers_at_far_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At all places of a whole context, before any logits are read."""
    from ci.lanes.llm.architecture import Llama3Rope, read_architecture
    from ci.lanes.llm.measure import order_figures
    from ci.lanes.llm.rounding import load_reference, require_rope

    model = write_checkpoint(tmp_path, **LLAMA_3_2_ROPE)
    shape = read_architecture(model)
    require_rope(load_reference(model), shape, 131072)
    wrong = shape.model_copy(update={"rope": Llama3Rope(**LLAMA_3_2 | {"factor": 8.0})})
    sizes: dict[str, Any] = {"context": 4096, "prefill": 32, "parts": 1, "calibration": []}
    compiled = CompileOrder(model=str(model), through=GENIE, soc="SM8650", precision="fp16", **sizes)
    monkeypatch.setattr("ci.lanes.llm.measure.read_architecture", lambda *_: wrong)
    row = [*range(16)]
    order = MeasureOrder(compiled=compiled, text=JudgedText([row], row, [], ""), kind="decode")
    with pytest.raises(CheckFailed, match="rope"):
        order_figures(order)


def our_logits(model: Path, tokens: Sequence[int]) -> Any:

    from ci.lanes.llm.architecture import read_architecture
    from ci.lanes.llm.decoder import load_decoder
    from ci.lanes.llm.graphs import call

    shape, context = read_architecture(model), 128
    decoder = load_decoder(model, shape, context, context)
    example = dict(zip(decoder.inputs, decoder.example(), strict=True))
    empty = {name: array.numpy() for name, array in example.items() if name.startswith("past_")}
    inputs = call(shape, context, context, tokens, 0, empty)
    with torch.no_grad():
        return decoder(*(torch.from_numpy(inputs[name]) for name in decoder.inputs))[0][0].numpy()


TOKENS = np.random.default_rng(5).integers(0, 256, 128).tolist()


@pytest.mark.parametrize("largest", [0.1, 1e-6])
def test_weights_are_rounded_as_onnxruntime_rounds_them_for_qnn(largest: float) -> None:
    """It gives no range less than MinimumRealRange, so that a healthy model with tiny weights loses bits."""
    from onnx import TensorProto, helper
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.quant_utils import quantize_data

    from ci.lanes.llm.rounding import SCHEMES, rounded_weight

    values = np.random.default_rng(3).uniform(-largest, largest, (8, 16)).astype(np.float32)
    empty = helper.make_model(helper.make_graph([], "empty", [], []))
    least = get_qnn_qdq_config(empty, None).extra_options["MinimumRealRange"]
    zero, scale, integers = quantize_data(values, TensorProto.UINT8, False, min_real_range=least)
    expected = (integers.astype(np.float32) - zero) * scale
    found = rounded_weight("a", torch.from_numpy(values), SCHEMES[GENIE, "16a8w"])
    assert np.abs(found.numpy() - expected).max() < 1e-3 * scale


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "rope_scaling": None}),
    ("qwen2", PLAIN),
    ("qwen3", {"rope_scaling": None}),
    ("mistral", {**PLAIN, "sliding_window": None}),
    ("mistral", {**PLAIN, "sliding_window": 128, "max_position_embeddings": 4096}),
    ("smollm3", {**PLAIN, "num_hidden_layers": 4, "tie_word_embeddings": True}),
    ("smollm3", {**PLAIN, "num_hidden_layers": 2, "no_rope_layers": [0, 1]}),
    ("phi3", PLAIN),
    ("phi3", PHI_4_MINI),
    ("olmo2", PLAIN),
    ("gemma3_text", GEMMA_3),
    ("gemma3_text", {**GEMMA_3, "layer_types": None, "sliding_window_pattern": 2, "sliding_window": 4096}),
]
"""As their authors publish them, but for the sizes."""


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "changes"), FAMILIES)
def test_our_reader_agrees_with_transformers(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    from ci.lanes.llm.architecture import read_architecture
    from ci.lanes.llm.rounding import load_reference, logits_of
    from ci.lanes.llm.weights import require_tensors

    model = write_checkpoint(tmp_path, model_type=kind, **changes)
    require_tensors(model, read_architecture(model))
    assert np.abs(our_logits(model, TOKENS) - logits_of(load_reference(model), TOKENS)).max() < 1e-3


@pytest.mark.parametrize(("kind", "precision"), [("llama", "16a8w"), ("smollm3", "16a4w")])
def test_genies_decode_is_quantized_by_all_that_prefill_reads(
    tmp_path: Path, kind: str, precision: str
) -> None:
    """A healthy model's decode diverged 500 times as much as its prefill: it was calibrated at few places."""
    from ci.lanes.llm.architecture import read_architecture
    from ci.lanes.llm.contexts import LayerPart, cpu_step
    from ci.lanes.llm.decoder import load_decoder
    from ci.lanes.llm.graphs import Ranges, outputs_of_rows, shared_encodings
    from ci.lanes.llm.measure import GraphReader
    from ci.lanes.llm.rounding import load_reference, logits_of

    model, out = write_checkpoint(tmp_path / "model", model_type=kind, **PLAIN), tmp_path / "out"
    out.mkdir()
    shape = read_architecture(model)
    sizes: dict[str, Any] = {"context": 128, "prefill": 32, "parts": 1, "calibration": [TOKENS]}
    sizes |= {"model": str(model), "into": str(out), "soc": "SM8650", "through": GENIE}
    order = CompileOrder(precision=precision, **sizes)
    outputs = outputs_of_rows(load_decoder(model, shape, 128, 128), [TOKENS])
    part = LayerPart(order, shape, 0, [TOKENS], outputs, shared_encodings(outputs))
    ranges: Ranges = []
    errors = []
    for name in KINDS:
        _, ranges = part.write_graph(name, order.count(name), ranges)
        step = cpu_step(order, shape, name, [0])
        read = GraphReader(shape, order.context, order.count(name), step).read(TOKENS)
        errors.append(np.abs(read - logits_of(load_reference(model), TOKENS)).max())
    prefill, decode = errors
    assert decode < 2 * prefill


def test_what_gives_no_numbers_is_as_far_off_as_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its logits, and in each of its parts, of which the median position may have numbers."""
    from ci.lanes.llm import measure

    monkeypatch.setitem(measure.RUNTIMES, GENIE, "tests.support.broken_runtime")
    model = write_checkpoint(tmp_path, num_hidden_layers=2, **PLAIN)
    order = CompileOrder(
        model=str(model),
        through=GENIE,
        soc="SM8650",
        precision="fp16",
        context=128,
        prefill=32,
        parts=2,
        calibration=[],
    )
    asked = MeasureOrder(compiled=order, text=JudgedText([TOKENS[:40]], TOKENS[:40], [], ""), kind="prefill")
    (windows,) = measure.order_figures(asked).read.values()
    assert np.isnan(windows[0].divergence).all() and not any(windows[0].same)
    parts = measure.order_parts(asked).parts
    assert [{*part.htp.values()} for part in parts] == [{-EXACT_DB}, {-EXACT_DB}]


def train(folder: Path) -> Path:
    """The tiny model of the suite, from nothing, in a process of its own."""
    with asking(home_of("train", folder), f"{WORKER}:answer", folder / "train.log", 900) as ask:
        ask(do="train", into=str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained"))


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_training_again_gives_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    again = train(tmp_path)
    for file in trained.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name
