"""Is what a language model says taken for what float says only where it is?"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.__main__ import VERBS
from ci.child import reporting
from ci.lanes.llm import worker as llm_worker
from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.commands import tokenizer_differences
from ci.lanes.llm.genie import CONFIG as GENIE_CONFIG
from ci.lanes.llm.genie import emulator_settings, require_short, require_sizes, setting, write_config
from ci.lanes.llm.graphs import shared_encodings
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    RECORD,
    CompileOrder,
    MeasuredProgram,
    PartDistances,
    Parts,
    Readings,
    Record,
    Rounded,
    SpokenText,
    Trained,
    TrainOrder,
    Window,
    record_of,
)
from ci.lanes.llm.product import CompileNeeds, parts_of
from ci.lanes.llm.stage import changed_files, digests_of, source_of
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.lanes.llm.text import judged_text, share_of_runs, windows
from ci.lanes.llm.tokenizer import (
    chat_text,
    encoded_by_transformers,
    require_tokenizer,
    without_beginning,
)
from ci.lanes.llm.verb import CHECK
from ci.lanes.llm.verdicts import (
    FIXES,
    WINDOWS,
    Bounds,
    Figure,
    figure_problems,
    figures_of,
    findings_of,
    misses,
    model_findings,
    window_of,
)
from ci.lanes.llm.weights import INDEX, require_tensors, shards_of
from ci.model_commands import run as run_command
from ci.outcome import Failure, InTrouble, Result
from ci.plain import as_json
from provisioning.base.command_line import guarded, main
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Report
from provisioning.base.settings import ROOT, store_path
from provisioning.manifest import soc_named
from qnn_ci.command import program_of
from tests.support.drawn_checkpoints import CHOSEN_BY, cause, drawn, layer_named, replayed
from tests.support.typed import parsed

SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIG = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": SCALING,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def fill_the_disk(order: TrainOrder) -> Trained:
    Path("/dev/full").write_text(f"what is trained in {order.into}")
    raise AssertionError


def read_with(noise: float, size: int = 8) -> list[Window]:
    generator = np.random.default_rng(2)
    windows = []
    for _ in range(size):
        reference = generator.standard_normal((40, 16)) * 3
        following = [int(row.argmax()) for row in reference]
        logits = reference + noise * generator.standard_normal((40, 16))
        windows.append(window_of(logits, reference, following))
    return windows


LIMITS = {"top1": 0.9, "perplexity_ratio": 1.1, "divergence": 0.05, "divergence_99": 0.5}


class TestFigures:
    def test_the_same_logits_are_perfect(self) -> None:
        figures = {name: figure.value for name, figure in figures_of(read_with(0)).items()}
        assert figures == pytest.approx(GOOD, abs=1e-12)
        assert not misses(figures_of(read_with(0)), LIMITS)

    def test_noise_misses_every_limit(self) -> None:
        assert len(misses(figures_of(read_with(3, size=64)), LIMITS)) == len(LIMITS)

    def test_what_is_not_a_number_misses_every_limit(self) -> None:
        reference = np.random.default_rng(2).standard_normal((40, 16))
        # argmax gives the first place of what is no number.
        reference[:, 0] = 9.0
        broken = window_of(np.full((40, 16), np.nan), reference, [0] * 40)
        assert len(misses(figures_of([broken, broken]), LIMITS)) == len(LIMITS)

    def test_a_choice_as_good_as_floats_own_is_another_one_unless_float_finds_both_equal(self) -> None:
        reference = np.tile(np.array([3.0, 2.9, 0.0]), (40, 1))
        found = reference.copy()
        found[:10] = [2.9, 3.0, 0.0]
        assert figures_of([window_of(found, reference, [0] * 40)] * 2)["top1"].value == 0.75
        reference[:, 1] = 3.0
        assert figures_of([window_of(found, reference, [0] * 40)] * 2)["top1"].value == 1


ORDER = CompileOrder(
    model="",
    through=GENIE,
    soc="SM8650",
    precision="16a8w",
    context=128,
    prefill=32,
    parts=1,
    calibration=[[9] * 16],
)


def checkpoint(folder: Path, **changes: Any) -> Path:
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


OF_EACH_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (64,),
    "self_attn.q_proj.weight": (64, 64),
    "self_attn.k_proj.weight": (32, 64),
    "self_attn.v_proj.weight": (32, 64),
    "self_attn.o_proj.weight": (64, 64),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}
OF_FAMILY: dict[str, dict[str, tuple[int, ...]]] = {
    "llama": {},
    "qwen2": {
        "self_attn.q_proj.bias": (64,),
        "self_attn.k_proj.bias": (32,),
        "self_attn.v_proj.bias": (32,),
    },
    "qwen3": {"self_attn.q_norm.weight": (16,), "self_attn.k_norm.weight": (16,)},
}


def weights_of(kind: str = "llama", layers: int = 2, *, tied: bool = False) -> dict[str, Any]:
    """What transformers saves of a model with CONFIG."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (512, 64),
        **({} if tied else {"lm_head.weight": (512, 64)}),
        "model.norm.weight": (64,),
    }
    for layer in range(layers):
        of_layer = OF_EACH_LAYER | OF_FAMILY[kind]
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def save_weights(folder: Path, weights: Mapping[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file(dict(weights), folder / "model.safetensors")


@pytest.fixture
def whole_checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_tokenizer(checkpoint(folder))
    save_weights(folder, weights_of())
    return folder


PUBLISHED: dict[str, Any] = json.loads(
    Path(__file__).with_name("published_checkpoints.json").read_text(encoding="utf-8")
)
"""config.json, and the tensors of the first layer and around the layers."""
PHI_ROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


class TestCheckpoint:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"model_type": "mamba"}, "mamba"),
            ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
            ({"hidden_size": None}, "hidden_size"),
            ({"hidden_size": "wide"}, "wide"),
            ({"num_hidden_layers": 0}, "num_hidden_layers"),
            ({"intermediate_size": 96.5}, "intermediate_size"),
            ({"num_key_value_heads": 3}, "num_attention_heads"),
            ({"hidden_size": 3}, "head_dim"),
            ({"bos_token_id": [0]}, "bos_token_id"),
            ({"bos_token_id": 512}, "bos_token_id"),
            ({"eos_token_id": [1, "</s>"]}, "eos_token_id"),
            ({"hidden_act": "gelu"}, "gelu"),
            ({"use_sliding_window": True}, "use_sliding_window"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ({"rope_scaling": ["llama3"]}, "rope_scaling"),
            ({"rope_scaling": {name: item for name, item in SCALING.items() if name != "factor"}}, "factor"),
            ({"rope_scaling": SCALING | {"factor": "eight"}}, "eight"),
            ({"rope_scaling": SCALING | {"high_freq_factor": 1.0}}, "high_freq_factor"),
            ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters"),
            (
                {"rope_parameters": SCALING | {"rope_theta": 500000.0, "partial_rotary_factor": 0.5}},
                "partial_rotary_factor",
            ),
        ],
    )
    def test_what_cannot_be_read_is_refused_by_name(
        self, tmp_path: Path, changes: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(UsageError, match=named):
            read_architecture(checkpoint(tmp_path, **changes))

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"model_type": "gemma3"}, "gemma3_text"),
            ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
            ({"model_type": "gemma3_text", "layer_types": ["sliding_attention"]}, "layer_types"),
            ({"model_type": "phi3", "partial_rotary_factor": 0.35}, "partial_rotary_factor"),
            ({"model_type": "phi3", "rope_scaling": PHI_ROPE | {"short_factor": [1.1] * 8}}, "short_factor"),
            ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
            ({"model_type": "mistral", "sliding_window": "wide"}, "sliding_window"),
            ({"model_type": "olmo2", "hidden_act": "gelu"}, "gelu"),
        ],
    )
    def test_what_a_family_cannot_be_built_with_is_refused_by_name(
        self, tmp_path: Path, changes: dict[str, Any], named: str
    ) -> None:
        more = {"rope_scaling": None, "original_max_position_embeddings": 64}
        with pytest.raises(UsageError, match=named):
            read_architecture(checkpoint(tmp_path, **{**more, **changes}))

    @pytest.mark.parametrize(
        ("changes", "most"),
        [
            ({"model_type": "mistral"}, 4096),
            ({"model_type": "mistral", "sliding_window": 512}, 512),
            ({"model_type": "phi3", "sliding_window": 2047}, 2047),
            ({"model_type": "phi3", "rope_scaling": PHI_ROPE}, 64),
            ({"model_type": "qwen2", "sliding_window": 512}, 32768),
        ],
    )
    def test_a_model_is_read_to_where_its_window_or_its_first_rope_ends(
        self, tmp_path: Path, changes: dict[str, Any], most: int
    ) -> None:
        """transformers has a window of 4096 for Mistral's config.json that says nothing."""
        more = {
            "rope_scaling": None,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 32768,
        }
        assert read_architecture(checkpoint(tmp_path, **{**more, **changes})).context == most

    def test_the_rope_of_transformers_5_is_that_of_transformers_4(self, tmp_path: Path) -> None:
        old = read_architecture(checkpoint(tmp_path))
        for scaling in (SCALING, {"rope_type": "default"}):
            new = {"rope_parameters": scaling | {"rope_theta": 500000.0}}
            shape = read_architecture(checkpoint(tmp_path, rope_theta=None, rope_scaling=None, **new))
            assert shape.rope_theta == old.rope_theta
            same = np.array_equal(shape.frequencies(), old.frequencies())
            assert same == (scaling == SCALING)

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_a_published_checkpoint_has_the_tensors_that_are_read(self, tmp_path: Path, name: str) -> None:
        """By its config.json, the names and shapes of transformers' own modules; all layers are alike."""
        published = PUBLISHED[name]
        (tmp_path / "config.json").write_text(json.dumps(published["config"]))
        expected: dict[str, tuple[int, ...]] = {}
        for tensor, size in published["tensors"].items():
            for layer in range(published["config"]["num_hidden_layers"]):
                expected[tensor.replace("layers.0.", f"layers.{layer}.")] = tuple(size)
        assert read_architecture(tmp_path).tensors == expected

    @pytest.mark.parametrize(
        ("config", "generation", "ends"),
        [(1, [2, 1, 3], (1, 2, 3)), ([4, 1], 2, (4, 1, 2)), (None, 2, (2,)), (1, None, (1,))],
    )
    def test_a_text_ends_as_either_file_says(
        self, tmp_path: Path, config: Any, generation: Any, ends: tuple[int, ...]
    ) -> None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        assert read_architecture(checkpoint(tmp_path, eos_token_id=config)).eos == ends

    @pytest.mark.parametrize(
        ("kind", "unread"),
        [
            ("llama", "model.layers.1.self_attn.o_proj.bias"),
            ("llama", "model.layers.0.mlp.gate_proj.bias"),
            ("llama", "model.layers.0.self_attn.q_norm.weight"),
            ("llama", "model.layers.2.input_layernorm.weight"),
            ("qwen2", "model.layers.0.self_attn.o_proj.bias"),
            ("qwen3", "model.layers.0.self_attn.q_proj.bias"),
        ],
    )
    def test_a_weight_that_nothing_reads_is_refused(self, tmp_path: Path, kind: str, unread: str) -> None:
        shape, more = read_architecture(checkpoint(tmp_path, model_type=kind)), np.ones(1, np.float32)
        save_weights(tmp_path, {**weights_of(kind), "model.layers.0.self_attn.rotary_emb.inv_freq": more})
        require_tensors(tmp_path, shape)
        save_weights(tmp_path, {**weights_of(kind), unread: more})
        with pytest.raises(UsageError, match=unread):
            require_tensors(tmp_path, shape)

    def test_the_head_is_its_own_unless_it_is_said_to_be_tied(self, tmp_path: Path) -> None:
        """As transformers reads a config.json that says nothing."""
        save_weights(tmp_path, weights_of("qwen2", tied=True))
        require_tensors(
            tmp_path, read_architecture(checkpoint(tmp_path, model_type="qwen2", tie_word_embeddings=True))
        )
        own = read_architecture(checkpoint(tmp_path, model_type="qwen2"))
        with pytest.raises(CheckFailed, match=r"lm_head\.weight"):
            require_tensors(tmp_path, own)
        save_weights(tmp_path, weights_of("qwen2"))
        require_tensors(tmp_path, own)

    @pytest.mark.parametrize(("value", "dtype"), [(1.0, "float32"), (2.0, "float32"), (1.0, "float16")])
    def test_a_stored_head_that_is_not_the_embedding_is_no_tied_one(
        self, tmp_path: Path, value: float, dtype: str
    ) -> None:
        shape = read_architecture(checkpoint(tmp_path, tie_word_embeddings=True))
        save_weights(tmp_path, {**weights_of(), "lm_head.weight": np.full((512, 64), value, dtype)})
        same = (value, dtype) == (1.0, "float32")
        with contextlib.nullcontext() if same else pytest.raises(UsageError, match=r"lm_head\.weight"):
            require_tensors(tmp_path, shape)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize("value", [float("nan"), float("-inf")])
    def test_a_weight_that_is_no_number_is_named_before_anything_starts(
        self, tmp_path: Path, value: float, dtype: str
    ) -> None:
        shape = read_architecture(checkpoint(tmp_path))
        weights = {name: (weight * -65504).astype(dtype) for name, weight in weights_of().items()}
        save_weights(tmp_path, weights)
        require_tensors(tmp_path, shape)
        weights["model.layers.1.mlp.up_proj.weight"][3, 3] = value
        save_weights(tmp_path, weights)
        with pytest.raises(CheckFailed, match=r"layers\.1\.mlp\.up_proj\.weight"):
            require_tensors(tmp_path, shape)

    @pytest.mark.parametrize("file", ["adapter_config.json", "model.gguf", "tokenizer.model"])
    def test_a_folder_without_a_checkpoint_is_refused(self, tmp_path: Path, file: str) -> None:
        (tmp_path / file).touch()
        with pytest.raises(UsageError):
            read_architecture(tmp_path)

    def compiled(self, command: Sequence[str], model: Path, *flags: str) -> int:
        verbs = {name: VERBS[name] for name in ("check", "compile")}
        return main(
            "python -m ci", "", verbs, [*command, str(model), "-o", str(model.parent / "out"), *flags]
        )

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--soc", "SM8650", "--soc", "SM8750"], "one chip"),
            (["--precision", "8a8w"], "16a8w"),
            (["--precision", "16a8w"], "--calibrate"),
            (["--precision", "16a8w", "--calibrate", "nowhere.txt"], "nowhere.txt"),
            (["--soc", "SM1"], "SM1"),
            (["--backend", "lpai"], "--backend"),
            (["--suite", "mine.toml"], "--suite"),
            (["--context", "256"], "made for 128"),
            (["--through", "executorch", "--precision", "16a2w"], "16a4w"),
            (["--through", "executorch", "--precision", "8a8w"], "--calibrate"),
            (["--through", "executorch", "--parts", "2"], "parts"),
            (["--through", "executorch", "--prefill", "128"], "longer context"),
        ],
        ids=lambda value: "-".join(value).strip("-") if isinstance(value, list) else "",
    )
    def test_compile_takes_the_folder_of_a_checkpoint(
        self, whole_checkpoint: Path, capsys: pytest.CaptureFixture[str], flags: list[str], named: str
    ) -> None:
        assert program_of("compile", [str(whole_checkpoint), *flags], Path.cwd()) == ("ci", "llm")
        assert self.compiled(["compile"], whole_checkpoint, *flags) == 2
        assert named in capsys.readouterr().err and not (whole_checkpoint.parent / "out").exists()

    def test_compile_writes_over_what_it_wrote_and_names_the_next_command(
        self, whole_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What its worker writes is given."""
        out, made = whole_checkpoint.parent / "out", whole_checkpoint.parent / "made"
        made.mkdir()
        binaries = [made / "prefill_0.bin", made / "decode_0.bin"]
        for binary in binaries:
            binary.touch()
        shape, soc = read_architecture(whole_checkpoint), soc_named("SM8650")
        write_config(made, shape, binaries, soc, context=128, most=5)

        def run_step(step: Any, programs: Sequence[Any]) -> dict[str, Result]:
            facts = {"size": 10, "cpu_seconds": 1.0, "peak": 5, "binaries": 2}
            return {program.name: Result(facts, made) for program in programs}

        monkeypatch.setattr("ci.lanes.llm.product.run_cached_step", run_step)
        monkeypatch.setattr("ci.lanes.llm.product.require_installed", lambda: None)
        # An installed copy has no other command.
        monkeypatch.setattr("provisioning.base.commands.CLONE", False)
        assert self.compiled(["compile"], whole_checkpoint) == 0
        assert f"try it: qnn-ci run {out} " in capsys.readouterr().out
        record = record_of(out)
        assert set(record.source) == {"config.json", "model.safetensors", "tokenizer.json"}
        # By a folder from where it is typed.
        monkeypatch.chdir(out.parent)
        (out / "prefill_1.bin").touch()
        earlier = replace(record, files={**record.files, "prefill_1.bin": ""})
        (out / RECORD).write_text(earlier.as_text())
        assert self.compiled(["compile"], whole_checkpoint, "-o", "out") == 0
        assert (out / "prefill_0.bin").exists() and not (out / "prefill_1.bin").exists()

    def test_a_folder_that_holds_other_things_is_refused(self, whole_checkpoint: Path) -> None:
        theirs = whole_checkpoint.parent / "out" / "theirs.bin"
        theirs.parent.mkdir()
        theirs.touch()
        assert self.compiled(["compile"], whole_checkpoint) == 2 and theirs.exists()

    def test_parts_are_no_larger_than_a_gigabyte(self, tmp_path: Path) -> None:
        small = read_architecture(checkpoint(tmp_path))
        sizes = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192}
        heads = {"num_heads": 32, "key_value_heads": 8, "size_of_head": 64}
        large = small.model_copy(update={**sizes, **heads, "num_layers": 16})
        assert (parts_of(small, "fp16"), parts_of(large, "fp16"), parts_of(large, "16a8w")) == (1, 4, 5)
        wider = {"hidden_size": 3072, "num_layers": 28, "num_heads": 24, "size_of_head": 128}
        three = large.model_copy(update=wider)
        assert parts_of(three, "fp16") == 8
        assert parts_of(large.model_copy(update={"num_layers": 11}), "fp16") == 4
        for shape, parts in ((large, 5), (three, 8), (three, 28), (small, 2)):
            spans = [shape.part(number, parts) for number in range(parts)]
            layers = [layer for first, last in spans for layer in range(first, last)]
            assert all(first < last for first, last in spans) and layers == list(range(shape.num_layers))

    @pytest.mark.parametrize(
        ("layers", "parts", "precision", "calibrated", "minutes", "gigabytes"),
        [(2, 2, "16a8w", 8184, 7.65, 9.9), (16, 5, "16a8w", 1536, 13.5, 9.7), (16, 4, "fp16", 0, 3.8, 5.8)],
    )
    def test_what_a_compile_needs_is_said_before_it(
        self,
        tmp_path: Path,
        layers: int,
        parts: int,
        precision: str,
        calibrated: int,
        minutes: float,
        gigabytes: float,
    ) -> None:
        """As 1B's true shape was measured."""
        published = PUBLISHED["Llama-3.2-1B"]["config"]
        (tmp_path / "config.json").write_text(json.dumps(published | {"num_hidden_layers": layers}))
        shape = read_architecture(tmp_path)
        context = 1024 if layers == 2 else 128
        rows = [[0] * calibrated]
        order = replace(ORDER, parts=parts, precision=precision, context=context, calibration=rows)
        needs = CompileNeeds.of(shape, order, pace=1.0)
        assert needs.seconds / 60 == pytest.approx(minutes, rel=0.3)
        assert needs.memory / 1e9 == pytest.approx(gigabytes, rel=0.2)
        assert len(list(needs.lines(tmp_path / "not" / "there"))) == 1
        [_, memory, disk] = replace(needs, memory=1e15, disk=1e15).lines(tmp_path)
        assert "memory" in memory and "--parts" in memory and "disk" in disk

    def test_a_half_downloaded_shard_is_named(self, tmp_path: Path) -> None:
        from safetensors.numpy import save_file

        shard = tmp_path / "model.safetensors"
        save_file({"weight": np.ones((64, 64), np.float32)}, shard)
        shard.write_bytes(shard.read_bytes()[:-100])
        with pytest.raises(CheckFailed, match=r"model\.safetensors"):
            shards_of(tmp_path)
        shard.unlink()
        index = {"weight": "model-1.safetensors", "other": "model-2.safetensors"}
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
        with pytest.raises(CheckFailed, match=r"model-1\.safetensors"):
            shards_of(tmp_path)

    @pytest.mark.parametrize(
        "text",
        [
            '{"weight_map": {',
            "[]",
            '{"metadata": {}, "weight_map": ["model-1.safetensors"]}',
            '{"metadata": {}, "weight_map": {"weight": 1}}',
        ],
    )
    def test_a_damaged_index_is_named(self, whole_checkpoint: Path, text: str) -> None:
        (whole_checkpoint / "model.safetensors").rename(whole_checkpoint / "model-1.safetensors")
        (whole_checkpoint / INDEX).write_text(text)
        with pytest.raises(CheckFailed, match=INDEX):
            shards_of(whole_checkpoint)

    def test_a_single_file_is_read_rather_than_an_index(self, whole_checkpoint: Path) -> None:
        """As transformers does."""
        single = whole_checkpoint / "model.safetensors"
        copied = Path(shutil.copy(single, whole_checkpoint / "model-1.safetensors"))
        names = dict.fromkeys(weights_of(), copied.name)
        (whole_checkpoint / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
        assert {tensor.path for tensor in shards_of(whole_checkpoint).values()} == {single}
        single.unlink()
        assert {tensor.path for tensor in shards_of(whole_checkpoint).values()} == {copied}

    @pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
    def test_weights_of_another_shape_are_refused_before_anything_starts(
        self, tmp_path: Path, kind: str
    ) -> None:
        save_weights(tmp_path, weights_of(kind))
        require_tensors(tmp_path, read_architecture(checkpoint(tmp_path, model_type=kind)))
        for changes in ({"num_key_value_heads": 1}, {"head_dim": 32}, {"vocab_size": 500}):
            other = read_architecture(checkpoint(tmp_path, model_type=kind, **changes))
            with pytest.raises(CheckFailed, match=r"\.weight"):
                require_tensors(tmp_path, other)

    def test_a_key_of_another_family_changes_nothing(self, tmp_path: Path) -> None:
        shape = read_architecture(checkpoint(tmp_path, query_pre_attn_scalar=1024))
        assert shape.score_scale == shape.head_dim**-0.5

    def test_the_ropes_of_gemma_3_by_transformers_5_are_those_of_transformers_4(self, tmp_path: Path) -> None:
        kinds = {"full_attention": 1e6, "sliding_attention": 3e4}
        new = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in kinds.items()}
        plain = {"model_type": "gemma3_text", "rope_scaling": None, "rope_theta": None}
        shape = read_architecture(checkpoint(tmp_path, **plain, rope_parameters=new))
        assert (shape.rope_theta, shape.rope_local_base_freq) == (1e6, 3e4)

    @pytest.mark.parametrize(
        ("wrong", "layers", "parts"), [(3, 3, 2), (3, 4, 4), (5, 5, 4), (5, 3, 2), (9, 4, 4), (9, 1, 1)]
    )
    def test_a_number_of_parts_that_is_refused_is_answered_by_one_that_works(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: int, layers: int, parts: int
    ) -> None:
        """In fp16 Genie computes odd ones wrong, and none is without a layer."""
        save_tokenizer(checkpoint(tmp_path, num_hidden_layers=layers))
        save_weights(tmp_path, weights_of(layers=layers))
        assert self.compiled(["compile"], tmp_path, "--parts", str(wrong)) == 2
        assert f"--parts {parts}" in capsys.readouterr().err

    def test_a_model_without_end_is_refused(
        self, whole_checkpoint: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        checkpoint(whole_checkpoint, eos_token_id=None)
        assert self.compiled(["compile"], whole_checkpoint) == 2
        assert "eos_token_id" in capsys.readouterr().err


class TestConfiguration:
    def read(self, folder: Path, **changes: Any) -> dict[str, Any]:
        shape = read_architecture(checkpoint(folder)).model_copy(update=changes)
        path = write_config(
            folder, shape, [folder / "a.bin", folder / "b.bin"], soc_named("SM8750"), context=128, most=5
        )
        dialog: dict[str, Any] = json.loads(path.read_text())["dialog"]
        return dialog

    def test_it_names_the_chip(self, tmp_path: Path) -> None:
        engine = self.read(tmp_path)["engine"]
        extension = json.loads((tmp_path / engine["backend"]["extensions"]).read_text())
        assert extension["devices"][0]["soc_id"] == 69 and extension["devices"][0]["dsp_arch"] == "v79"

    @pytest.mark.parametrize(
        "text", ["{,}", "[]", '{"dialog": 1}', '{"dialog": {"context": {}}}', '{"dialog": {"context": 3}}']
    )
    def test_a_configuration_that_its_user_broke_is_refused(self, tmp_path: Path, text: str) -> None:
        config = tmp_path / "genie_config.json"
        config.write_text(text)
        with pytest.raises(UsageError, match="genie_config"):
            setting(config, "context", "bos-token")

    def test_a_model_whose_tokenizer_begins_no_text_has_genie_begin_none(self, tmp_path: Path) -> None:
        """Like Qwen's: config.json names a token all the same."""
        folder = checkpoint(tmp_path, model_type="qwen2")
        assert read_architecture(folder).beginning == (0,)
        save_tokenizer(folder)
        (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
        assert read_architecture(folder).beginning == ()
        assert self.read(tmp_path, bos=None)["context"]["bos-token"] == -1

    def begun(self, folder: Path, form: str, *words: int) -> Path:
        from tokenizers import Tokenizer, processors

        save_tokenizer(checkpoint(folder), {"a": 0, "b": 1, "c": 2})
        path = str(folder / "tokenizer.json")
        tokenizer = Tokenizer.from_file(path)
        names = {f"{'abc'[word]}": word for word in words}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=form, special_tokens=list(names.items())
        )
        tokenizer.save(path)
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return folder

    def test_the_tokenizer_says_what_begins_a_text_whatever_config_json_names(self, tmp_path: Path) -> None:
        """As in DeepSeek-R1-Distill-Qwen: bos_token_id is 0, and the tokenizer puts 1."""
        shape = read_architecture(self.begun(tmp_path, "b $A", 1))
        assert shape.bos == 1 and shape.beginning == (1,)
        binaries = [tmp_path / "decode_0.bin"]
        config = write_config(tmp_path, shape, binaries, soc_named("SM8650"), context=128, most=5)
        assert setting(config, "context", "bos-token") == 1

    @pytest.mark.parametrize("extra", [["c"], {}])
    @pytest.mark.parametrize("template", ["file", "settings", ""])
    def test_a_tokenizer_that_transformers_5_saved_is_read(
        self, tmp_path: Path, template: str, extra: Any
    ) -> None:
        folder = self.begun(tmp_path, "b $A", 1)
        settings: dict[str, Any] = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}
        settings |= {"bos_token": "b"}
        words = "{{ bos_token }} {{ messages[0]['content'] }}"
        settings |= {"extra_special_tokens": extra, "is_local": True}
        if template == "settings":
            settings |= {"chat_template": words}
        elif template:
            (folder / "chat_template.jinja").write_text(words)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        assert read_architecture(folder).bos == 1
        if template:
            assert chat_text(folder, "c", "") == "b c"

    def test_what_genie_reads_is_held_to_transformers_own_tokenizer(self, tmp_path: Path) -> None:
        folder = self.begun(tmp_path, "b $A", 1)

        def problems(name: str, text: str, tokens: list[int], bos: int) -> list[str]:
            return list(tokenizer_differences(folder, name, text, tokens, bos))

        assert problems("text", "c a", [2, 0], 1) == []
        [wrong] = problems("text", "c a", [2, 0], 0)
        assert "Genie reads [0, 2, 0]" in wrong and "gives [1, 2, 0]" in wrong
        assert problems("chat", "b c", [1, 2], 1) == []
        [wrong] = problems("chat", "c c", [2, 2], 1)
        assert "of a chat Genie reads [1, 2, 2]" in wrong

    @pytest.mark.parametrize(
        ("form", "words", "named"),
        [("a b $A", (0, 1), "[0, 1] first"), ("a $A b", (0, 1), "[1] at the end")],
    )
    def test_what_genie_cannot_put_around_a_text_is_refused(
        self, tmp_path: Path, form: str, words: tuple[int, ...], named: str
    ) -> None:
        with pytest.raises(UsageError) as refused:
            read_architecture(self.begun(tmp_path, form, *words))
        assert named in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize("tokens", [96, 97])
def test_a_prompt_to_which_genie_says_nothing_is_refused(tokens: int) -> None:
    allowed = pytest.raises(UsageError) if tokens > 96 else contextlib.nullcontext()
    with allowed:
        require_short(range(tokens), 128, 32)


@pytest.mark.parametrize(("ids", "fits"), [([0, 511], True), ([0, 512], False), ([], False)])
def test_a_tokenizer_with_words_that_the_model_lacks_is_refused(
    tmp_path: Path, ids: list[int], fits: bool
) -> None:
    vocabulary = {f"word{index}": number for index, number in enumerate(ids)}
    save_tokenizer(tmp_path, vocabulary)
    with contextlib.nullcontext() if fits else pytest.raises(UsageError, match="tokenizer"):
        require_tokenizer(tmp_path, 512)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckFailed, match="tokenizer"):
        require_tokenizer(tmp_path, 512)


def test_a_tokenizer_without_settings_reads_a_whole_text_though_its_file_cuts_them_off(
    tmp_path: Path,
) -> None:
    """As transformers reads it."""
    save_tokenizer(tmp_path, {"a": 0, "b": 1})
    file = tmp_path / "tokenizer.json"
    cut = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": cut}))
    assert encoded_by_transformers(tmp_path, "a a b a b", False) == ([0, 0, 1, 0, 1], [0] * 5)


@pytest.mark.parametrize("text", ["{}", "[", '{"order": 3}'])
def test_a_record_of_another_release_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(UsageError):
        record_of(tmp_path)


def test_zero_is_exact_in_a_cache_and_all_that_float_puts_there_has_an_integer() -> None:
    seen = np.array([-3.0, 1.0], np.float32)
    cache = shared_encodings([{"past_key_0_out": seen}])["past_key_0_in"]
    zero, *others = cache.integers(np.array([0.0, *seen], np.float32)).astype(int)
    assert zero == cache.zero == 128
    assert [(integer - cache.zero) * cache.scale for integer in others] == pytest.approx(
        seen, abs=cache.scale
    )


@pytest.mark.parametrize(
    ("context", "prefill"), [(128, 64), (128, 96), (256, 128), (256, 192), (128, 8), (200, 32)]
)
def test_sizes_with_which_genie_speaks_nonsense_are_refused(context: int, prefill: int) -> None:
    require_sizes(128, 32)
    with pytest.raises(UsageError):
        require_sizes(context, prefill)


def part(number: int, kind: str, htp: float, cpu: float | None = None) -> PartDistances:
    held, on_cpu = (None if db is None else {"hidden_1": db} for db in (htp, cpu))
    assert held is not None
    return PartDistances(number, kind, (number, number), held, on_cpu)


GOOD = {"top1": 1.0, "perplexity_ratio": 1.0, "divergence": 0.0, "divergence_99": 0.0}


PLACES = 127
"""Of a window that fills a context of 128."""


def reading(
    divergence: float = 0.0, share: float = 1.0, *, spread: float = 0.0, windows: int = 8
) -> list[Window]:
    """Windows as a worker hands them over: all tokens alike, but for a share of top-1. `spread` is
    from window to window."""
    others = PLACES - round(share * PLACES)
    return [
        Window(
            ours=[1.0] * PLACES,
            theirs=[1.0] * PLACES,
            divergence=[divergence + spread * (-1) ** number] * PLACES,
            same=[False] * others + [True] * (PLACES - others),
        )
        for number in range(windows)
    ]


def begun_with(windows: Sequence[Window], *divergence: float) -> list[Window]:
    """Of which the first places diverge so much."""
    rest = len(divergence)
    return [replace(window, divergence=[*divergence, *window.divergence[rest:]]) for window in windows]


def save_record(out: Path, order: CompileOrder, **more: Any) -> None:
    known: dict[str, Any] = {"source": {}, "files": {}, **more}
    record = Record(order=order, size=1, **known)
    (out / RECORD).write_text(record.as_text())


def test_a_compiled_file_that_is_gone_or_another_is_named(tmp_path: Path) -> None:
    names = ("edited.bin", "gone.bin", "kept.bin")
    for name in names:
        (tmp_path / name).write_text(name)
    store = tmp_path / "store"
    save_record(tmp_path, ORDER, files=digests_of(store, {name: tmp_path / name for name in names}))
    (tmp_path / "gone.bin").unlink()
    (tmp_path / "edited.bin").write_text("other")
    assert changed_files(tmp_path, record_of(tmp_path), store) == ["edited.bin", "gone.bin"]


def save_tokenizer(folder: Path, words: Mapping[str, int] | None = None, *, begun: bool = False) -> None:
    """Each word is a token; "a" begins each text if it is `begun`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(dict({"a": 0, "b": 5} if words is None else words), "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if begun:
        tokenizer.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))


def found_by(folder: Path) -> list[Finding]:
    """By the last check."""
    return [*Report.read(folder / "reports" / "check.json").findings]


def messages(folder: Path) -> str:
    return "\n".join(finding.message for finding in found_by(folder))


@pytest.mark.parametrize("through", ["genie", "executorch"])
def test_what_is_said_keeps_the_space_that_its_first_word_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], through: str
) -> None:
    """sentencepiece's words begin with it, and alone its first one loses it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from ci.lanes.llm.genie import PROGRAM

    words = {"\u2581when": 3, "\u2581error": 4, "s": 5, "\u2581": 6}
    tokenizer = Tokenizer(models.WordLevel(words, "\u2581"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    shape = read_architecture(checkpoint(tmp_path))
    save_record(tmp_path, replace(ORDER, model=str(tmp_path), through=through))

    def genie(config: Path, prompt: Sequence[int], most: int, *, timeout: float) -> SpokenText:
        assert config.name == GENIE_CONFIG and (prompt, most) == ([3], 2)
        return SpokenText([4, 5], "length")

    asked: list[dict[str, Any]] = []

    def program(**order: Any) -> dict[str, Any]:
        asked.append(order)
        return {"tokens": [4, 5], "stopped": "length"}

    if through == "genie":
        binaries = [tmp_path / "decode_0.bin"]
        binaries[0].touch()
        write_config(tmp_path, shape, binaries, soc_named("SM8650"), context=128, most=5)
    else:
        (tmp_path / PROGRAM).touch()
    monkeypatch.setattr("ci.lanes.llm.commands.ask_worker", lambda *_: contextlib.nullcontext(program))
    monkeypatch.setattr("ci.lanes.llm.commands.generate", genie)
    assert run_llm("run", tmp_path, "when", "--tokens", "2") == 0
    out, err = capsys.readouterr()
    assert out == "when errors\n" and "2 tokens, stopped by length" in err
    assert [(order["do"], order["prompt"], order["most"]) for order in asked] == (
        [("answer", [3], 2)] if through == EXECUTORCH else []
    )


def run_llm(name: str, *words: object) -> int:
    """The exit code of `run` or `check`."""
    verb: Any = {"run": run_command, "check": CHECK}[name]
    arguments = parsed(verb, *words)
    return guarded(lambda: verb.run(arguments), debug=False)


class TestCheck:
    """Of a compiled model; what its worker measures is given."""

    def check(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *flags: str,
        precision: str = "16a8w",
        parts: Sequence[PartDistances] = (),
        calibrated: Sequence[Sequence[int]] = ([9] * 16,),
        sizes: tuple[int, int] = (0, 0),
        asked: list[dict[str, Any]] | None = None,
        edited: Sequence[str] = (),
        begun: bool = False,
        noise: Sequence[Window] = tuple(reading(0.1)),
        kept: Sequence[float] = (24.0, 24.0),
        genie: Sequence[Window] = tuple(reading()),
        since: Mapping[str, str] | None = None,
        read: Sequence[Window] = tuple(reading()),
    ) -> int:
        model, out = folder / "model", folder / "out"
        for made in (model, out):
            made.mkdir(exist_ok=True)
            save_tokenizer(made, begun=begun)
        shape = read_architecture(checkpoint(model))
        binaries = [out / "prefill_0.bin", out / "decode_0.bin"]
        for binary, size in zip(binaries, sizes, strict=True):
            binary.touch()
            os.truncate(binary, size)
        write_config(out, shape, binaries, soc_named("SM8650"), context=128, most=5)
        rows = [list(row) for row in calibrated]
        order = replace(ORDER, model=str(model), precision=precision, parts=2, calibration=rows)
        source = {**source_of(order, store_path()), **(since or {})}
        # Digests of gigabytes would take a minute.
        small = [path for path in out.iterdir() if path.stat().st_size < 1 << 20]
        files = {path.name: path for path in small if path.name != RECORD}
        save_record(out, order, files=digests_of(store_path(), files), source=source)
        for name in edited:
            (out / name).write_text("another")
        (folder / "text.txt").write_text("a " * 3000)
        alone = Rounded(
            read={name: list(noise) for name in (WINDOWS, "prefill_genie", "decode_genie")},
            parts=[{"hidden_1": db} for db in kept],
        )
        of_prefill = [part for part in parts if part.kind == "prefill"]
        of_decode = [part for part in parts if part.kind == "decode"]
        answers: dict[tuple[str, str], Any] = {
            ("rounding", ""): alone,
            ("figures", "prefill"): Readings({}),
            ("figures", "decode"): Readings({"decode_htp": list(read)}),
            ("genie", ""): Readings({"decode_genie": list(genie)}),
            ("parts", "prefill"): Parts(of_prefill),
            ("parts", "decode"): Parts(of_decode),
        }

        def answer(**order: Any) -> dict[str, Any]:
            if asked is not None:
                asked.append(order)
            return as_json(answers[order["do"], order.get("kind", "")])

        ask = contextlib.nullcontext(answer)
        monkeypatch.setenv("QNN_CI_REPORTS", str(folder / "reports"))
        monkeypatch.setattr("ci.lanes.llm.commands.ask_worker", lambda *_: ask)

        def encoded(_: Path, texts: Sequence[str], **__: object) -> list[list[int]]:
            return [[0] * len(text.split()) for text in texts]

        monkeypatch.setattr("ci.lanes.llm.commands.encoded", encoded)
        return run_llm("check", out, "--text", folder / "text.txt", *flags)

    def test_it_is_held_to_its_limits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.check(tmp_path, monkeypatch) == 0
        half = reading(share=0.5)
        assert self.check(tmp_path, monkeypatch, read=half) == 1
        assert self.check(tmp_path, monkeypatch, "--top1", "0.4", read=half) == 0
        assert self.check(tmp_path, monkeypatch, "--tokens", "4000") == 2

    def test_top1s_may_change_as_often_as_rounding_alone_changes_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        swapped = reading(0.01, share=0.89)
        assert self.check(tmp_path, monkeypatch, read=swapped, noise=swapped) == 0
        assert self.check(tmp_path, monkeypatch, "--top1", "0.95", read=swapped, noise=swapped) == 1
        shown = capsys.readouterr().out
        assert "agreement 0.8898" in shown and "at least 0.95" in shown
        # Rounding alone does not explain it.
        assert self.check(tmp_path, monkeypatch, read=reading(share=0.8), noise=reading(1.0)) == 1
        assert "at least 0.9" in messages(tmp_path)

    def test_genies_own_logits_are_held_to_the_limits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are of few tokens, so three standard errors are allowed."""
        for divergence, spread, code in ((0.055, 0.01, 0), (0.09, 0.01, 1), (0.11, 0.1, 1)):
            genie = reading(divergence, spread=spread)
            assert self.check(tmp_path, monkeypatch, noise=reading(1.0), genie=genie) == code, divergence
        assert "Genie's decode" in messages(tmp_path)

    def test_a_quantized_model_may_lose_what_rounding_alone_costs_and_no_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def code(rounding: float, divergence: float, *flags: str, precision: str = "16a8w") -> int:
            read, noise = reading(divergence), reading(rounding)
            return self.check(tmp_path, monkeypatch, *flags, precision=precision, noise=noise, read=read)

        assert code(0.01, 0.012) == 0
        assert code(0.001, 0.012) == 1
        assert code(0.2, 0.06) == 1
        few = begun_with(reading(), *[0.4] * 20)
        for flags, red in (((), 1), (("--divergence", "0.1", "--divergence-99", "0.5"), 0)):
            assert self.check(tmp_path, monkeypatch, *flags, noise=reading(0.001), read=few) == red
        assert code(1e-6, 1e-5, precision="fp16") == 0
        assert code(1e-6, 5e-5, precision="fp16") == 1

    def test_a_few_tokens_may_be_cut_off(self) -> None:
        """Two right models were red by 8.05e-5 and 7.9e-5: each graph cuts off other tokens."""
        noise = {name: Figure(value, 1e-6) for name, value in (GOOD | {"divergence": 5e-5}).items()}
        bounds = Bounds("16a8w", {WINDOWS: noise}, [], {})
        for figures, wrong in (
            ({"divergence": 9e-4, "divergence_99": 0.004}, 0),
            ({"divergence": 2e-3}, 1),
            ({"divergence_99": 0.006}, 1),
        ):
            found = {name: Figure(value, 1e-6) for name, value in (GOOD | figures).items()}
            assert len(list(figure_problems({"decode_htp": found}, bounds))) == wrong, figures

    @pytest.mark.parametrize(
        ("chosen", "expected"), [(True, "0 of 8 | 1 of 5 | 4 of 4"), (False, "0 of 10 | 1 of 10 | 9 of 9")]
    )
    def test_drawn_checkpoints_are_judged_right_as_often_as_the_page_says(
        self, chosen: bool, expected: str
    ) -> None:
        """Replayed from what was measured of them. The page has those by which no limit was chosen."""
        lines = [line for line in drawn() if (line["seed"] in CHOSEN_BY) == chosen]
        healthy = [line for line in lines if line["fault"] == "none"]
        faulty = [line for line in lines if line["fault"] != "none"]
        red, found = (sum(map(bool, map(replayed, some))) for some in (healthy, faulty))
        named = sum(layer_named(line) == "right" for line in faulty)
        assert {cause(line) for line in faulty if replayed(line)} <= {"graph", "halves"}
        counts = f"{red} of {len(healthy)} | {len(faulty) - found} of {len(faulty)} | {named} of {found}"
        assert counts == expected
        assert chosen or f"| {counts} |" in (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")

    def test_a_checkpoint_that_changed_since_it_was_compiled_is_compiled_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("model.safetensors", "config.json"):
            assert self.check(tmp_path, monkeypatch, since={name: "another"}) == 0
            assert f"changed since it was compiled: {name}" in capsys.readouterr().err
        worse = reading(9.0)
        assert self.check(tmp_path, monkeypatch, since={name: "another"}, read=worse) == 1
        assert {finding.fix.partition(",")[0] for finding in found_by(tmp_path)} == {"compile it again"}

    def test_a_wrong_part_is_told_without_being_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        parts, kept = [part(0, "prefill", 41.0), part(1, "prefill", 26.0)], (52.0, 52.0)

        def code(parts: Sequence[PartDistances], *flags: str) -> int:
            return self.check(tmp_path, monkeypatch, *flags, precision="fp16", parts=parts, kept=kept)

        for flags in ((), ("--on", "parts")):
            assert code(parts, *flags) == 1
            assert "goes wrong in prefill_1, layers 1 to 1" in messages(tmp_path)
        capsys.readouterr()
        assert code(parts[:1]) == 0
        assert "prefill_0" not in capsys.readouterr().out
        assert code(parts[:1], "--on", "parts") == 0
        shown = capsys.readouterr().out
        assert "prefill_0, layers 0 to 0: SQNR of hidden_1 against float: 41.0 dB (at least 40.0 dB)" in shown
        assert "Genie was not run" in shown

    def add(self, folder: Path, name: str, text: str, *, of: Sequence[str] = ("model", "out")) -> None:
        for place in of:
            (folder / place).mkdir(exist_ok=True)
            (folder / place / name).write_text(text)

    def test_a_template_that_begins_twice_is_refused_before_the_emulator_works(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.add(tmp_path, "chat_template.jinja", "a a")
        self.add(tmp_path, "tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast"}')
        asked: list[dict[str, Any]] = []
        assert self.check(tmp_path, monkeypatch, asked=asked, begun=True) == 2 and not asked
        assert "twice" in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["prefill_0.bin", "genie_config.json", "tokenizer.json"])
    def test_what_was_edited_since_it_was_compiled_is_to_be_compiled_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """No figure would tell a part of another compile from a layer that QNN computes otherwise, and Genie
        speaks nonsense by another rope without a word."""
        asked: list[dict[str, Any]] = []
        assert self.check(tmp_path, monkeypatch, edited=["README.md"]) == 0
        assert self.check(tmp_path, monkeypatch, edited=[name], asked=asked) == 1 and not asked
        [finding] = found_by(tmp_path)
        assert name in finding.message and finding.fix.startswith("compile it again")

    def test_a_text_that_quantized_it_does_not_judge_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of the text "a a a …", whose tokens are all 0."""
        assert self.check(tmp_path, monkeypatch, calibrated=[[0] * 40]) == 2
        assert self.check(tmp_path, monkeypatch, calibrated=[[1] * 40]) == 0

    def test_binaries_beyond_the_emulators_memory_are_refused_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The emulator's limit is for one process, and each kind of binary has one."""
        most = 3_200_000_000
        assert self.check(tmp_path, monkeypatch, sizes=(most, most)) == 0
        assert self.check(tmp_path, monkeypatch, sizes=(most + 1, 0)) == 2
        assert self.check(tmp_path, monkeypatch, "--on", "parts", sizes=(most + 1, most + 1)) == 0
        assert "Genie was not run" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("precision", "parts", "named"),
        [
            ("16a8w", [part(0, "prefill", 40, 42), part(1, "prefill", 20, 42)], "prefill_1"),
            ("16a8w", [part(0, "prefill", 20, 21), part(0, "decode", -999, 21)], "decode_0"),
            ("16a8w", [part(0, "prefill", 20, 21), part(1, "prefill", 3, 3)], "prefill_1"),
            ("fp16", [part(0, "prefill", 50), part(1, "decode", -999)], "decode_1"),
        ],
    )
    def test_the_part_that_is_worse_than_its_precision_is_named(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        precision: str,
        parts: Sequence[PartDistances],
        named: str,
    ) -> None:
        for flags in ([], ["--on", "parts"]):
            assert self.check(tmp_path, monkeypatch, *flags, precision=precision, parts=parts) == 1
            assert f"goes wrong in {named}" in messages(tmp_path)

    def test_a_part_that_rounding_alone_does_not_explain_is_wrong(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """HTP and CPU agree where the graph itself is wrong."""
        parts = [part(0, "prefill", 24, 24), part(1, "prefill", 30, 30)]
        assert self.check(tmp_path, monkeypatch, parts=parts, kept=(25, 31)) == 0
        assert self.check(tmp_path, monkeypatch, parts=parts, kept=(25, 36)) == 1
        assert "goes wrong in prefill_1" in messages(tmp_path)

    def test_a_report_keeps_what_was_measured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        parts = [part(0, "prefill", 24, 24), part(1, "prefill", 30, 30)]
        assert self.check(tmp_path, monkeypatch, parts=parts) == 0
        report = Report.read(tmp_path / "reports" / "check.json")
        [row] = report.metrics["programs"].values()  # type: ignore[union-attr]
        assert isinstance(row, dict) and row["verdict"] == "pass" and row["precision"] == "16a8w"
        assert {"figures", "parts", "rounding"} <= set(row)

    def test_what_rounding_alone_changes_is_warned_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for share, rules in ((0.89, ["llm-rounding"]), (0.91, [])):
            assert self.check(tmp_path, monkeypatch, noise=reading(0.1, share)) == 0
            assert [finding.rule for finding in found_by(tmp_path)] == rules

    def test_one_prompt_whose_values_are_cut_off_is_not_genies_fault(self) -> None:
        """A healthy Gemma 3 was red by one of ten prefixes."""
        bounds = Bounds("16a8w", {"prefill_genie": figures_of(read_with(0))}, [], {})

        def is_wrong(*divergences: float) -> bool:
            windows = [
                replace(window, divergence=[nats] * 40)
                for nats, window in zip(divergences, read_with(0), strict=True)
            ]
            return bool(list(figure_problems({"prefill_genie": figures_of(windows)}, bounds)))

        assert not is_wrong(0.03, *[1e-5] * 7)
        assert is_wrong(1e-5, *[0.03] * 7)

    @pytest.mark.parametrize(
        ("cause", "measured"),
        [
            ("graph", {"parts": [part(1, "prefill", 5.0, 5.0)], "noise": reading(1.0)}),
            ("lowering", {"parts": [part(1, "prefill", 20.0, 40.0)]}),
            ("halves", {"parts": [part(1, "prefill", 26.0)], "precision": "fp16", "kept": (40.0, 40.0)}),
            (
                "rounding",
                {"parts": [part(1, "prefill", 40.0, 40.0)], "noise": reading(0.06), "read": reading(0.08)},
            ),
            ("genie", {"parts": [part(1, "prefill", 40.0, 40.0)], "genie": reading(0.2)}),
        ],
    )
    def test_what_to_do_follows_from_what_is_wrong(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, measured: dict[str, Any]
    ) -> None:
        """Other text to calibrate by repairs no graph, and a graph that is right on the CPU is right."""
        assert self.check(tmp_path, monkeypatch, **measured) == 1
        assert {finding.fix for finding in found_by(tmp_path)} == {FIXES[cause]}

    def test_a_checkpoint_that_has_moved_is_named_by_a_flag(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.check(tmp_path, monkeypatch) == 0
        moved = (tmp_path / "model").rename(tmp_path / "moved")
        command = ("check", tmp_path / "out", "--text", tmp_path / "text.txt")
        for flags, code in (((), 2), (("--checkpoint", moved), 0)):
            assert run_llm(*command, *flags) == code
        assert "--checkpoint FOLDER" in capsys.readouterr().err

    def test_a_text_that_is_not_utf_8_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        latin = tmp_path / "latin.txt"
        latin.write_bytes("caf\u00e9 ".encode("latin-1") * 3000)
        assert self.check(tmp_path, monkeypatch, "--text", str(latin)) == 2
        assert f"{latin} is not UTF-8 text at byte 3" in capsys.readouterr().err
        with pytest.raises(UsageError, match=r"latin\.txt"):
            windows(tmp_path / "out", read_architecture(tmp_path / "model"), latin, 128)

    @pytest.mark.parametrize(("words", "code"), [(1002, 0), (1001, 2)])
    def test_a_text_too_short_for_its_prefixes_is_refused(
        self, tmp_path: Path, words: int, code: int
    ) -> None:
        """The longest have 32 + 8 tokens, each of the other 48 ends 20 later, and two tokens follow."""
        save_tokenizer(tmp_path)
        shape, text = read_architecture(checkpoint(tmp_path)), tmp_path / "text.txt"
        text.write_text("a " * words)
        with pytest.raises(UsageError) if code else contextlib.nullcontext():
            judged_text(replace(ORDER, model=str(tmp_path)), shape, text, 100, 49)


@pytest.mark.parametrize(
    ("tokens", "rest"),
    [([0, 5, 6], [5, 6]), ([5, 6], [5, 6]), ([0, 5, 0, 6], [5, 0, 6])],
    ids=["from a template", "plain", "each message begins so, as SmolLM 2's"],
)
def test_what_begins_a_text_is_left_to_genie(tokens: list[int], rest: list[int]) -> None:
    assert without_beginning(tokens, 0) == rest


@pytest.mark.parametrize("tokens", [[0, 0, 5], [0], []])
def test_a_second_beginning_and_no_prompt_are_refused(tokens: list[int]) -> None:
    with pytest.raises(UsageError):
        without_beginning(tokens, 0)


def test_a_passage_of_another_text_is_known_wherever_it_begins() -> None:
    known = [range(1000)]
    assert share_of_runs(range(5000, 6000), known) == 0
    assert share_of_runs([*range(5000, 5900), *range(301, 401)], known) == pytest.approx(0.1, abs=0.02)


def program(word: str) -> LlmProgram:
    program: LlmProgram
    [program] = SUITES.choose(SUITES.all_programs([]), words=[f"tiny/{word}/"])
    return program


def rules(program: LlmProgram, result: Result) -> list[str]:
    return [finding.rule for finding in findings_of(program, result)]


class TestVerdicts:
    def measured(self, name: str = "", windows: Sequence[Window] = (), *parts: PartDistances) -> Result:
        """Of a program where rounding alone costs .001 nats; one reader has found these windows."""
        names = ("prefill_htp", "decode_htp", "prefill_genie", "decode_genie")
        found = {name: reading(0.0005) for name in names} | ({name: list(windows)} if name else {})
        noise = {name: reading(0.001) for name in (WINDOWS, "prefill_genie", "decode_genie")}
        rounded = Rounded(noise, [{"hidden_1": 42.0}] * 2)
        facts = as_json(MeasuredProgram(10, found, rounded, list(parts)))
        return Result({**facts, "peak": 5})

    def test_a_program_is_held_to_what_rounding_alone_costs_at_each_reader(self) -> None:
        quantized = program("genie-16a8w")
        assert rules(quantized, self.measured()) == []
        for name in ("prefill_htp", "decode_htp", "prefill_genie", "decode_genie"):
            assert rules(quantized, self.measured(name, reading(0.01))) == ["llm-accuracy"]
        assert rules(quantized, self.measured("decode_htp", reading(0.0005, share=0.5))) == ["llm-accuracy"]

    def test_a_full_disk_is_the_machines_in_training_and_in_a_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(llm_worker.ORDERS, "train", (__name__, "fill_the_disk"))
        with pytest.raises(InTrouble) as caught:
            answer = reporting(llm_worker.facts_of, llm_worker.error_of)
            answer({"do": "train", "into": "", "log": str(tmp_path / "log")})
        failed = Result(failure=Failure.of(caught.value.trouble))
        assert rules(program("genie-fp16"), failed) == ["llm-machine"]
        assert [finding.rule for finding in model_findings("tiny", 18, failed)] == ["llm-machine"]

    def test_a_program_that_failed_and_a_model_that_learned_nothing_are_errors(self) -> None:
        failed = Result(failure=Failure("crash", "ended by SIGSEGV"))
        assert rules(program("genie-fp16"), failed) == ["llm-crash"]
        assert list(model_findings("tiny", 18, failed))
        for perplexity, wrong in ((400.0, True), (float("nan"), True), (14.0, False)):
            trained = Result(as_json(Trained(perplexity, "digest")))
            assert bool(list(model_findings("tiny", 18, trained))) == wrong


@pytest.mark.parametrize(
    ("run", "named"),
    [
        ('precision = "8a8w"', "16a8w"),
        ('precision = "16a16w"\nthrough = "executorch"', "16a8w"),
        ('precision = "fp16"\nthrough = "executorch"\nparts = 2', "parts"),
    ],
)
def test_what_a_way_does_not_offer_is_refused(tmp_path: Path, run: str, named: str) -> None:
    suite = tmp_path / "llm.toml"
    head = 'schema = 2\n[case.mine]\nperplexity = 20\n[[case.mine.run]]\nlane = "llm"\n'
    suite.write_text(f'{head}{run}\nsocs = ["SM8650"]\n')
    with pytest.raises(UsageError, match=named):
        SUITES.all_programs([suite])


@pytest.mark.parametrize(("context", "count"), [(128, 12), (1024, 8), (8192, 2)])
def test_a_long_context_is_quantized_by_fewer_windows(tmp_path: Path, context: int, count: int) -> None:
    shape = read_architecture(checkpoint(tmp_path))
    save_tokenizer(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("a " * (count * (context - 1)))
    assert [len(row) for row in windows(tmp_path, shape, text, context)] == [context] * count
    text.write_text("a " * (count * (context - 1) - 1))
    with pytest.raises(CheckFailed):
        windows(tmp_path, shape, text, context)


class TestChats:
    """Of the windows that a model is quantized and judged by, a share are chats."""

    TEMPLATE = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [end] {% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )

    def folder(self, folder: Path, *, template: bool) -> Path:
        from tokenizers import Tokenizer, processors

        checkpoint(folder, eos_token_id=3, vocab_size=40)
        names = ["<s>", "[user]", "[assistant]", "[end]", "a"]
        save_tokenizer(folder, {name: index for index, name in enumerate(names)})
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens(names[:4])
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"bos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast"}
        chat = {"chat_template": self.TEMPLATE} if template else {}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | chat))
        return folder

    @pytest.mark.parametrize("template", [True, False])
    def test_windows_have_the_tokens_that_begin_and_end_turns(self, tmp_path: Path, template: bool) -> None:
        folder, text = self.folder(tmp_path, template=template), tmp_path / "text.txt"
        shape = read_architecture(folder)
        text.write_text("a " * 2000)
        rows = windows(folder, shape, text, 128)
        chats = [index for index, row in enumerate(rows) if 3 in row]
        assert chats == [1, 5, 9] and {len(row) for row in rows} == {128}
        assert {1, 2} <= set(rows[1]) if template else rows[1].count(3) == 4
        # A second one would be calibrated and judged, and no text has it.
        assert all(row[0] == 0 and (0, 0) not in itertools.pairwise(row) for row in rows)


def test_binaries_too_large_for_the_emulator_leave_the_prompt_to_decode(tmp_path: Path) -> None:
    binaries = [tmp_path / name for name in ("prefill_0.bin", "decode_0.bin")]
    shape = read_architecture(checkpoint(tmp_path))
    config = write_config(tmp_path, shape, binaries, soc_named("SM8650"), context=128, most=5)
    for size, names in ((1 << 20, ["prefill_0.bin", "decode_0.bin"]), (2_000_000_000, ["decode_0.bin"])):
        for binary in binaries:
            with binary.open("wb") as file:
                file.truncate(size)
        assert emulator_settings(config)["dialog"]["engine"]["model"]["binary"]["ctx-bins"] == names
    os.truncate(binaries[1], 3_200_000_001)
    with pytest.raises(UsageError, match="decode"):
        emulator_settings(config)
    binaries[1].unlink()
    with pytest.raises(UsageError, match=r"decode_0\.bin"):
        emulator_settings(config)


@pytest.mark.parametrize(("whole", "last"), [(True, 1024), (False, 26)])
def test_genies_last_text_goes_to_the_contexts_end_though_ours_is_shorter(
    tmp_path: Path, whole: bool, last: int
) -> None:
    """Without a graph for prefill it would take hours to come there, and ends where the windows do."""
    save_tokenizer(tmp_path)
    shape, text = read_architecture(checkpoint(tmp_path)), tmp_path / "text.txt"
    order = replace(ORDER, model=str(tmp_path), context=1024)
    text.write_text("a b " * 150)
    end = judged_text(order, shape, text, 100, 3, whole=whole).texts[-1]
    assert len(shape.beginning) + len(end.prompt) + len(end.tokens) == last
    # Genie takes no longer prompt.
    assert len(end.prompt) <= 1024 - 32
    assert [*end.prompt, *end.tokens] == ([0, 5] * 600)[: last - len(shape.beginning)]
