"""Language models through the real compiler, the HTP emulator and Genie."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # first: who imports transformers without it has none of its models
from safetensors.torch import load_file, save_file

from ci.__main__ import VERBS
from ci.lanes.llm import measure, worker
from ci.lanes.llm.architecture import Architecture, Llama3Rope, read_architecture
from ci.lanes.llm.contexts import LayerPart, cpu_step
from ci.lanes.llm.decoder import load_decoder, require_halves
from ci.lanes.llm.genie import CONFIG, encode_texts, generate
from ci.lanes.llm.graphs import (
    Encoding,
    Ranges,
    Step,
    outputs_of,
    outputs_of_rows,
    place_axis,
    shared_encodings,
)
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    KINDS,
    AnswerOrder,
    CompileOrder,
    JudgedText,
    MeasureOrder,
)
from ci.lanes.llm.rounding import (
    SCHEMES,
    load_reference,
    logits_of,
    require_rope,
    rounded_model,
    rounded_weight,
)
from ci.lanes.llm.steps import WORKER, home_of
from ci.lanes.llm.tiny import texts
from ci.lanes.llm.tokenizer import chat_text, tokens_of
from ci.lanes.llm.verdicts import Bounds, culprit, part_row
from ci.lanes.llm.weights import require_tensors
from ci.models.inputs import Array, Sample
from ci.work.processes import asking
from provisioning.base.command_line import main
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT
from provisioning.base.units import EXACT_DB
from tests.support.checkpoints import PUBLISHED, write_checkpoint, write_config_json
from tests.support.typed import typed

pytestmark = pytest.mark.heavy
OF_EXECUTORCH = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""Of what it imports."""


@pytest.fixture(autouse=True)
def frozen() -> None:
    """What earlier tests imported stays: the product looks for garbage after each reading and each export."""
    gc.freeze()


def test_a_worker_finds_scikit_learn_only_after_what_it_reads_models_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reading.py").write_text(
        "from importlib.util import find_spec\nSPEC = find_spec('sklearn')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    monkeypatch.setattr(worker, "READING", ["reading"])
    worker.train()
    assert sys.modules["reading"].SPEC is None and "sklearn" not in sys.modules


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


Weights = dict[str, Any]
ATTENTION, MLP = "model.layers.1.self_attn.", "model.layers.0.mlp."
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def negated_values(weights: Weights, shape: Architecture) -> None:
    """Of one head."""
    weights[f"{ATTENTION}v_proj.weight"][: shape.head_dim] *= -1


def other_group(weights: Weights, shape: Architecture) -> None:
    """Queries read the keys and values of the other group of heads."""
    for name in ("k_proj", "v_proj"):
        weight = weights[f"{ATTENTION}{name}.weight"]
        weight.copy_(weight.roll(shape.head_dim, 0))


def keys_one_place_on(weights: Weights, shape: Architecture) -> None:
    """Keys are rotated as those of the next token: first by one place, then by their own."""
    cos, sin = (torch.from_numpy(table[0])[:, None] for table in shape.rotation(np.arange(1, 2)))
    weight = weights[f"{ATTENTION}k_proj.weight"]
    one, other = weight.view(shape.num_kv_heads, 2, shape.head_dim // 2, -1).unbind(1)
    turned = torch.stack((one * cos - other * sin, other * cos + one * sin), 1)
    weight.copy_(turned.reshape(weight.shape))


def backwards(weights: Weights, shape: Architecture) -> None:
    """The rope turns the other way: halves of queries and keys are exchanged, so their products stay."""
    for name in ("q_proj", "k_proj", "q_norm", "k_norm"):
        weight = weights[f"{ATTENTION}{name}.weight"]
        halves = weight.view(-1, 2, shape.head_dim // 2, *weight.shape[1:])
        weight.copy_(halves.flip(1).reshape(weight.shape))


def swapped_gate(weights: Weights, shape: Architecture) -> None:
    weight = weights[f"{MLP}gate_up_proj.weight"]
    weight.copy_(weight.roll(shape.intermediate_size, 0))


def lost_attention(weights: Weights, shape: Architecture) -> None:
    weights[f"{ATTENTION}o_proj.weight"].zero_()


def scaled_embedding(weights: Weights, shape: Architecture) -> None:
    weights[EMBEDDING] *= 1.5


def rolled_head(weights: Weights, shape: Architecture) -> None:
    """Each word's logit is that of the word before it."""
    weights[HEAD] = weights[EMBEDDING].roll(1, 0)


@dataclass(frozen=True)
class Family:
    kind: str
    changes: dict[str, Any]
    plant: Callable[[Weights, Architecture], None]
    """A fault in the weights."""
    layer: int
    """The first that is wrong."""


FAMILIES_BY_NAME = {
    "Llama 3": Family("llama", {}, negated_values, 1),
    "Llama 3 with many words": Family("llama", {"vocab_size": 8192}, other_group, 1),
    "Qwen 2.5": Family("qwen2", PLAIN, keys_one_place_on, 1),
    "Qwen 3": Family("qwen3", {"rope_scaling": None}, backwards, 1),
    "Mistral without a window": Family("mistral", {**PLAIN, "sliding_window": None}, other_group, 1),
    "SmolLM 3": Family("smollm3", {**PLAIN, "no_rope_layers": [0, 1]}, scaled_embedding, 0),
    "Phi 4 mini": Family("phi3", PHI_4_MINI, swapped_gate, 0),
    "OLMo 2": Family("olmo2", {**PLAIN, "rope_theta": 20000.0}, lost_attention, 1),
    "Gemma 3": Family("gemma3_text", GEMMA_3, rolled_head, 1),
}
"""At 16a4w random weights hide another embedding and keys one place on: rounding alone leaves 10 dB of the
keys."""
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


def right_and_wrong(folder: Path, family: Family) -> tuple[Path, Path]:
    """A checkpoint of two layers, and the same with the family's fault."""
    settings = {**family.changes, "model_type": family.kind, "num_hidden_layers": 2}
    model, wrong = write_checkpoint(folder / "model", **settings), folder / "wrong"
    shutil.copytree(model, wrong)
    weights = load_file(model / "model.safetensors")
    family.plant(weights, read_architecture(model))
    config = json.loads((model / "config.json").read_text()) | {"tie_word_embeddings": HEAD not in weights}
    (wrong / "config.json").write_text(json.dumps(config))
    save_file(weights, wrong / "model.safetensors")
    return model, wrong


def test_the_page_lists_the_families_and_precisions_that_are_tested() -> None:
    page = (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")
    for kind in {family.kind for family in FAMILIES_BY_NAME.values()}:
        cells = re.findall(rf"^\| `{kind}` \| [^|]+ \| ([^|]*)\| ([^|]*)\|$", page, re.MULTILINE)[0]
        ways = [way for family, way in FAMILIES_AND_WAYS if FAMILIES_BY_NAME[family].kind == kind]
        for through, cell in zip((GENIE, EXECUTORCH), cells, strict=True):
            expected = {precision for runtime, precision in ways if runtime == through}
            assert set(re.findall(r"\w+", cell)) == expected, (kind, through)


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a checkpoint in two files, compiled in two parts. No token begins its texts, though
    config.json names one."""
    folder = tmp_path_factory.mktemp("speaker")
    changes: dict[str, Any] = {"model_type": "qwen3", "rope_scaling": None, "num_hidden_layers": 2}
    model = write_checkpoint(folder / "model", **changes, bos_token_id=None)
    write_config_json(model, **changes)
    (model / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    assert not read_architecture(model).beginning
    in_shards(model)
    command("compile", model, "--soc", "SM8650", "--parts", "2", "-o", folder / "out")
    assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []
    return folder / "out"


@pytest.mark.whole
@pytest.mark.timeout(900)
class TestGenie:
    @pytest.mark.parametrize("length", [8, 33])
    def test_it_says_what_float_says(self, speaker: Path, length: int) -> None:
        """In fp16 it may choose the other one of two tokens that float finds nearly as good."""
        prompt = [60 + place % 190 for place in range(length)]
        said = generate(speaker / CONFIG, prompt, 12, timeout=300)
        rows = logits_of(load_reference(speaker.with_name("model")), [*prompt, *said.tokens], 13)
        assert said.stopped == "length" and len(said.tokens) == 12
        assert all(row.max() - row[token] < 0.05 for row, token in zip(rows, said.tokens, strict=False))

    def test_a_model_too_large_for_one_process_is_checked_by_decode(
        self, speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a large model the emulator loads the binaries of one kind at a time."""
        monkeypatch.chdir(tmp_path)
        text = tmp_path / "text.txt"
        text.write_text((ROOT / "README.md").read_text()[:1100])
        largest = max(sum(path.stat().st_size for path in speaker.glob(f"{kind}_*.bin")) for kind in KINDS)
        for bytes_loaded, code in ((largest, 0), (largest - 1, 2)):
            monkeypatch.setattr("ci.lanes.llm.genie.EMULATOR_BYTES", bytes_loaded)
            arguments = ["check", str(speaker), "--text", str(text), "--tokens", "200"]
            assert main("python -m ci", "", {"check": VERBS["check"]}, arguments) == code

    def test_a_chat_is_the_same_tokens_to_it_and_to_upstreams_runner(
        self, speaker: Path, tmp_path: Path
    ) -> None:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers

        folder = Path(shutil.copytree(speaker, tmp_path / "out"))
        tokenizer = Tokenizer(models.BPE(ignore_merges=True))
        split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator([(ROOT / "README.md").read_text()], trainer)
        form = f"{SPECIAL[0]} $A"
        tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=[(SPECIAL[0], 0)])
        tokenizer.save(str(folder / "tokenizer.json"))
        names = {"bos_token": SPECIAL[0], "chat_template": TEMPLATE}
        settings = json.dumps(names | {"tokenizer_class": "PreTrainedTokenizerFast"})
        (folder / "tokenizer_config.json").write_text(settings)
        chat = chat_text(folder, "It's I'LL don't  12345 cafés\n\n x", "Be brief.")
        tokens = tokens_of(tokenizer, chat)
        assert tokens.count(0) == 1
        assert chat.startswith(f"{SPECIAL[0]}{SPECIAL[2]}system")
        assert chat.endswith("assistant<|end_header_id|>\n\n")
        texts = [chat, "a  b"]
        assert encode_texts(folder / CONFIG, texts, timeout=300) == [
            tokens_of(tokenizer, text) for text in texts
        ]
        upstream = (
            "import sys, pytorch_tokenizers; tokenizer = pytorch_tokenizers.CppHFTokenizer();"
            "tokenizer.load(sys.argv[1]); print(list(tokenizer.encode(sys.argv[2], 0, 0)))"
        )
        # In a process of its own: beside onnxruntime it crashes.
        words = [sys.executable, "-c", upstream, str(folder / "tokenizer.json"), chat]
        ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
        assert json.loads(ended.stdout.splitlines()[-1]) == tokens


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "way"), FAMILIES_AND_WAYS)
def test_each_family_passes_each_way_and_a_fault_in_it_is_found(
    tmp_path: Path, name: str, way: tuple[str, str]
) -> None:
    """A checkpoint in two files, by a text that it was not quantized by. Of random weights, in whose choices
    many words are nearly as good. One with other weights, which is held to the first, is wrong."""
    family, (through, precision) = FAMILIES_BY_NAME[name], way
    model, wrong = right_and_wrong(tmp_path, family)
    in_shards(model)
    text, other = tmp_path / "text.txt", tmp_path / "other.txt"
    text.write_text((ROOT / "LICENSE").read_text()[:1400] * 2)
    other.write_text((ROOT / "README.md").read_text()[:1100])
    flags: list[str | Path] = ["--through", through, "--precision", precision]
    if through == GENIE:
        # Each layer is a part, which can be named.
        flags += ["--parts", "2"]
    if precision != "fp16":
        flags += ["--calibrate", text]
    for folder in (model, wrong):
        out = tmp_path / f"{folder.name}-out"
        command("compile", folder, *flags, "-o", out)
        # It holds the text, which may be secret.
        assert ("compiled.json" in (out / "README.md").read_text()) == (precision != "fp16")
        few = ("--text", other, "--tokens", "254", "--reports", tmp_path / "reports")
        said = command("check", out, *few, "--checkpoint", model, code=folder == wrong)
    if layers := re.search(r"goes wrong in \w+, layers (\d+) to (\d+)", said):
        first, last = map(int, layers.groups())
        assert first <= family.layer <= last, said


@pytest.mark.whole
@pytest.mark.timeout(900)
@OF_EXECUTORCH
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


def in_shards(model: Path) -> None:
    """The weights in two files with an index, as large checkpoints come."""
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(weights)
    index = {name: f"model-{1 + (number % 2)}.safetensors" for number, name in enumerate(names)}
    for file in set(index.values()):
        save_file({name: weights[name] for name in names if index[name] == file}, model / file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (model / "model.safetensors.index.json").write_text(text)


def test_a_weight_beyond_what_halves_hold_is_refused(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path)
    weights = {name: data.to(torch.bfloat16) for name, data in load_file(model / "model.safetensors").items()}
    for value, fits in ((65280.0, True), (65536.0, False)):
        weights["model.layers.0.mlp.down_proj.weight"][0, 0] = -value
        save_file(weights, model / "model.safetensors")
        decoder = load_decoder(model, read_architecture(model), 1, 128)
        with contextlib.nullcontext() if fits else pytest.raises(CheckFailed, match=r"down_proj.*fp16"):
            require_halves(decoder)


def test_rope_is_held_to_that_of_transformers_at_far_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At all places of a whole context, before any logits are read."""
    rope = PUBLISHED["Llama-3.2-1B"]["config"]["rope_scaling"]
    model = write_checkpoint(tmp_path, rope_scaling=rope, max_position_embeddings=131072, head_dim=64)
    shape = read_architecture(model)
    require_rope(load_reference(model), shape, 131072)
    wrong = shape.model_copy(update={"rope": Llama3Rope(**rope | {"factor": 8.0})})
    sizes: dict[str, Any] = {"context": 4096, "prefill": 32, "parts": 1, "calibration": []}
    compiled = CompileOrder(model=str(model), through=GENIE, soc="SM8650", precision="fp16", **sizes)
    monkeypatch.setattr("ci.lanes.llm.measure.read_architecture", lambda *_: wrong)
    row = [*range(16)]
    order = MeasureOrder(compiled=compiled, text=JudgedText([row], row, [], ""), kind="decode")
    with pytest.raises(CheckFailed, match="rope"):
        measure.order_figures(order)


TOKENS = np.random.default_rng(5).integers(0, 256, 128).tolist()


@pytest.mark.parametrize("largest", [0.1, 1e-6])
def test_weights_are_rounded_as_onnxruntime_rounds_them_for_qnn(largest: float) -> None:
    """It gives no range less than MinimumRealRange, so that a healthy model with tiny weights loses bits."""
    from onnx import TensorProto, helper
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.quant_utils import quantize_data

    values = np.random.default_rng(3).uniform(-largest, largest, (8, 16)).astype(np.float32)
    empty = helper.make_model(helper.make_graph([], "empty", [], []))
    least = get_qnn_qdq_config(empty, None).extra_options["MinimumRealRange"]
    zero, scale, integers = quantize_data(values, TensorProto.UINT8, False, min_real_range=least)
    expected = (integers.astype(np.float32) - zero) * scale
    found = rounded_weight("a", torch.from_numpy(values), SCHEMES[GENIE, "16a8w"])
    assert np.abs(found.numpy() - expected).max() < 1e-3 * scale


@OF_EXECUTORCH
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((family.kind, family.changes) for family in FAMILIES_BY_NAME.values()),
        ("llama", {"tie_word_embeddings": True, "rope_scaling": None}),
        ("mistral", {**PLAIN, "sliding_window": 128, "max_position_embeddings": 4096}),
        ("smollm3", {**PLAIN, "num_hidden_layers": 4, "tie_word_embeddings": True}),
        ("phi3", PLAIN),
        ("gemma3_text", {**GEMMA_3, "layer_types": None, "sliding_window_pattern": 2}),
    ],
)
def test_our_decoder_agrees_with_transformers(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """As a graph of Genie's, and as upstream's runner reads it; as their authors publish them, but for the
    sizes."""
    from ci.lanes.llm.executorch import RunnerLayout

    model = write_checkpoint(tmp_path, **{"model_type": kind, "num_hidden_layers": 2, **changes})
    shape = read_architecture(model)
    require_tensors(model, shape)
    decoder = load_decoder(model, shape, 128, 128)
    layout = RunnerLayout(decoder)
    with torch.no_grad():
        by_runner = layout(*layout.inputs(TOKENS, 0, layout.empty()))[0][0].numpy()
    expected = logits_of(load_reference(model), TOKENS)
    for found in (outputs_of(decoder, TOKENS)["logits"][0], by_runner):
        assert np.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("llama", "16a8w"),
        # Nightly, as it takes 20 seconds: another family is quantized in the same way.
        pytest.param("smollm3", "16a4w", marks=pytest.mark.whole),
    ],
)
def test_genies_decode_is_quantized_by_all_that_prefill_reads(
    tmp_path: Path, kind: str, precision: str
) -> None:
    """A healthy model's decode diverged 500 times as much as its prefill: it was calibrated at few places.
    Both graphs are as far from float as rounding alone makes transformers' own model."""
    model, out = write_checkpoint(tmp_path / "model", model_type=kind, **PLAIN), tmp_path / "out"
    out.mkdir()
    shape = read_architecture(model)
    sizes: dict[str, Any] = {"context": 128, "prefill": 32, "parts": 1, "calibration": [TOKENS]}
    sizes |= {"model": str(model), "into": str(out), "soc": "SM8650", "through": GENIE}
    order = CompileOrder(precision=precision, **sizes)
    outputs, _ = outputs_of_rows(load_decoder(model, shape, 128, 128), [TOKENS], [TOKENS])
    part = LayerPart(order, shape, 0, [TOKENS], outputs, shared_encodings(outputs))
    alone = rounded_model(
        load_reference(model), [TOKENS], TOKENS, SCHEMES[GENIE, precision], calibration=[TOKENS]
    )
    [exact], [rounded] = alone.exact, alone.rounded
    ranges: Ranges = []
    errors = []
    for name in KINDS:
        _, of_kind = part.write_graph(name, order.count(name), ranges)
        ranges = ranges or of_kind
        assert ranges == of_kind
        step = cpu_step(order, shape, name, [0])
        read = measure.GraphReader(shape, order.context, order.count(name), step).read(TOKENS)
        assert (read - exact).std() == pytest.approx((rounded - exact).std(), rel=0.01)
        errors.append(np.abs(read - exact).max())
    prefill, decode = errors
    assert decode < 2 * prefill


def test_an_input_that_one_part_has_as_integers_is_a_float_where_another_does_not_use_it(
    tmp_path: Path,
) -> None:
    """As the rope of Gemma's local layers in a part that has none: `check` ended in an error of its own."""
    from onnx import parser, save

    graphs = (
        "(float[1] x, float[1] rope) => (float[1] hidden_1) { hidden_1 = Neg(x) }",
        "(float[1] hidden_1, uint16[1] rope) => (float[1] logits) <float s = {0.5}, uint16 z = {4}>"
        "{ turned = DequantizeLinear(rope, s, z) logits = Add(hidden_1, turned) }",
    )
    for number, graph in enumerate(graphs):
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 21]> graph{number} {graph}')
        save(model, tmp_path / f"decode_{number}_cpu.onnx")
    sizes: dict[str, Any] = {"context": 128, "prefill": 32, "parts": 2, "calibration": [TOKENS]}
    sizes |= {"model": "", "into": str(tmp_path), "soc": "SM8650", "through": GENIE}
    order = CompileOrder(precision="16a8w", **sizes)
    inputs = {"x": np.array([3], np.float32), "rope": np.array([8], np.float32)}
    shape = read_architecture(write_checkpoint(tmp_path / "model", **PLAIN))
    assert cpu_step(order, shape, "decode", [0, 1])(inputs)["logits"] == [5]


def planted(name: str, values: Array) -> Array:
    """What the stand-in below makes of an output."""
    return values


def htp_step(order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int]) -> Step:
    """Of a stand-in for a runtime, this module: it computes as float does, but for what is planted."""
    model, count, context = Path(order.into), order.count(kind), order.context
    shape = read_architecture(model)
    layers = [shape.part(number, order.parts) for number in parts]
    decoders = [load_decoder(model, shape, count, context, *span) for span in layers]

    def step(inputs: Sample) -> Sample:
        known = {name: torch.from_numpy(values) for name, values in inputs.items()}
        outputs: dict[str, Any] = {}
        for decoder in decoders:
            with torch.no_grad():
                made = decoder(*(known[name] for name in decoder.inputs))
            outputs |= zip(decoder.outputs, made, strict=True)
            known |= outputs
        return {name: planted(name, values.numpy()) for name, values in outputs.items()}

    return step


def wrong_at_most_places(name: str, values: Array) -> Array:
    """A tenth too large at a third of the places, and a fifth at another third."""
    axis = place_axis(name) if name.startswith("past_") else 1
    factors = np.array([1.1, 1, 1.2], np.float32)[np.arange(values.shape[axis]) % 3]
    return values * np.expand_dims(factors, [other for other in range(values.ndim) if other != axis])


class TestMeasures:
    @pytest.fixture
    def order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileOrder:
        monkeypatch.setitem(measure.RUNTIMES, GENIE, __name__)
        model = write_checkpoint(tmp_path, num_hidden_layers=2, **PLAIN)
        sizes: dict[str, Any] = {"context": 128, "prefill": 32, "parts": 2, "calibration": []}
        sizes |= {"model": str(model), "into": str(model)}
        return CompileOrder(through=GENIE, soc="SM8650", precision="fp16", **sizes)

    @pytest.mark.parametrize(
        ("plant", "db"),
        [
            (lambda _, values: values, 100.0),
            (lambda _, values: values * np.float32(1.1), 20.0),
            (wrong_at_most_places, 20.0),
            (lambda _, values: values * np.nan, -EXACT_DB),
        ],
        ids=["right", "a tenth too large", "at most places", "no numbers"],
    )
    def test_each_part_is_as_far_off_as_its_values_are(
        self,
        order: CompileOrder,
        monkeypatch: pytest.MonkeyPatch,
        plant: Callable[[str, Array], Array],
        db: float,
    ) -> None:
        """An error of a tenth is 20 dB, however large the values are, at the median position."""
        monkeypatch.setattr(sys.modules[__name__], "planted", plant)
        text = JudgedText([TOKENS[:36]], TOKENS[:64], [], "")
        parts = measure.order_parts(MeasureOrder(compiled=order, text=text, kind="prefill")).parts
        assert [(part.number, part.layers) for part in parts] == [(0, (0, 0)), (1, (1, 1))]
        found = [value for part in parts for value in part.htp.values()]
        assert len(found) == 6
        assert min(found) > db if db == 100 else found == pytest.approx([db] * 6, abs=0.01)
        for kind in KINDS:
            asked = MeasureOrder(compiled=order, text=text, kind=kind)
            [[window]] = measure.order_figures(asked).read.values()
            floats = torch.from_numpy(logits_of(load_reference(Path(order.model)), TOKENS[:35]))
            losses = torch.nn.functional.cross_entropy(floats, torch.tensor(TOKENS[1:36]), reduction="none")
            assert (window.ours == pytest.approx(losses.tolist(), abs=1e-3)) == (db == 100)
            assert any(window.same) == (db > 0) and (max(window.divergence) < 1e-6) == (db == 100)

    @pytest.mark.parametrize("name", FAMILIES_BY_NAME)
    def test_a_fault_in_a_family_is_found_in_its_layer(
        self, order: CompileOrder, tmp_path: Path, name: str
    ) -> None:
        family = FAMILIES_BY_NAME[name]
        model, wrong = right_and_wrong(tmp_path / "family", family)
        compiled = replace(order, model=str(model), into=str(wrong))
        text = JudgedText([TOKENS[:40]], TOKENS[:64], [], "")
        asked = MeasureOrder(compiled=compiled, text=text, kind="prefill")
        bounds = Bounds("fp16", {}, measure.order_rounding(asked).parts, {})
        parts = measure.order_parts(asked).parts
        assert f", layers {family.layer} to {family.layer}:" in culprit(
            [part_row(row, bounds) for row in parts]
        )

    def test_what_rounding_alone_leaves_follows_from_the_bits(self, order: CompileOrder) -> None:
        """Of a true shape it was 56, 44 and 19 dB; each bit of a weight is 6."""
        text = JudgedText([TOKENS[:60]], TOKENS[:64], [], "")
        kept = {}
        for precision in ("fp16", "16a8w", "16a4w"):
            compiled = replace(order, precision=precision)
            rounded = measure.order_rounding(MeasureOrder(compiled=compiled, text=text))
            assert [len(part) for part in rounded.parts] == [3, 3]
            kept[precision] = min(value for part in rounded.parts for value in part.values())
        assert 50 < kept["fp16"] < 75 and 25 < kept["16a8w"] < 45 and 5 < kept["16a4w"] < 25

    @pytest.mark.parametrize(
        ("prompt", "most", "said", "stopped"), [(20, 3, 3, "length"), (120, 50, 7, "context")]
    )
    def test_an_answer_is_floats_and_ends_where_the_context_does(
        self, order: CompileOrder, prompt: int, most: int, said: int, stopped: str
    ) -> None:
        asked = AnswerOrder(compiled=order, prompt=TOKENS[:prompt], most=most)
        answer = measure.order_answer(asked)
        assert (len(answer.tokens), answer.stopped) == (said, stopped)
        rows = logits_of(load_reference(Path(order.model)), [0, *TOKENS[:prompt], *answer.tokens], said + 1)
        assert rows[:-1].argmax(-1).tolist() == answer.tokens


@OF_EXECUTORCH
@pytest.mark.parametrize(
    ("bos", "eos", "expected"),
    [
        (0, 1, {"bos_id": 0, "eos_id": 1, "n_bos": 1}),
        (None, [7, 8], {"bos_id": 7, "eos_id": 7, "n_eos": 2, "n_bos": 0}),
    ],
)
def test_a_program_tells_upstreams_runner_what_it_is(
    tmp_path: Path, bos: int | None, eos: Any, expected: dict[str, int]
) -> None:
    """By the names that qnn_llama_runner asks for."""
    from ci.lanes.llm.executorch import metadata

    folder = write_config_json(tmp_path, num_hidden_layers=3, bos_token_id=bos, eos_token_id=eos)
    shape = read_architecture(folder)
    found = metadata(shape, 128, 32, {"logits": Encoding("uint16", 0.5, 9)})
    sizes = {"ar_len": 32, "dim": 64, "head_dim": 32, "n_kv_heads": 2, "n_layers": 3, "vocab_size": 256}
    context = {"max_seq_len": 128, "max_context_len": 128}
    logits = {"logits_scale": 0.5, "logits_zero_point": 9, "kv_io_bit_width": 16}
    for name, value in {**sizes, **context, **logits, **expected}.items():
        assert found[f"get_{name}"] == value, name
    assert metadata(shape, 128, 32, {})["get_kv_io_bit_width"] == 32


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_training_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """The tiny model of the suite, from nothing, each time in a process of its own."""
    for name in ("first", "again"):
        with asking(home_of("train", tmp_path), f"{WORKER}:answer", tmp_path / "train.log", 900) as ask:
            ask(do="train", into=str(tmp_path / name))
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def test_no_sentence_that_judges_or_calibrates_the_tiny_model_has_trained_it() -> None:
    corpus = texts()
    parts = [{*corpus.training}, {*corpus.judged}, {*corpus.calibration}]
    assert sum(map(len, parts)) == len(set.union(*parts)) and all(parts)
