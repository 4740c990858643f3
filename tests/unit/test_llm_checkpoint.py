"""Is a checkpoint as it is published read, and one that would be computed otherwise refused by name?"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.commands import tokenizer_differences
from ci.lanes.llm.tokenizer import chat_text, drop_beginning, encoded_by_transformers, require_tokenizer
from ci.lanes.llm.weights import INDEX, require_tensors, shards_of
from provisioning.base.errors import CheckFailed, UsageError
from tests.support.checkpoints import (
    PUBLISHED,
    SMALL,
    shapes_of,
    write_config_json,
    write_tokenizer,
    write_weights,
)

SCALING: dict[str, Any] = SMALL["rope_scaling"]
NO_ROPE = {"rope_scaling": None}
PHI = {"model_type": "phi3", "original_max_position_embeddings": 64}
PHI_ROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
GEMMA = {"model_type": "gemma3_text", **NO_ROPE}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_is_read_as_transformers_reads_it(tmp_path: Path, name: str) -> None:
    published = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(published["config"]))
    shape, computes = read_architecture(tmp_path), published["computes"]
    assert shape.tensors == {
        tensor.replace("layers.0.", f"layers.{layer}."): tuple(size)
        for tensor, size in published["tensors"].items()
        for layer in range(published["config"]["num_hidden_layers"])
    }
    for rope, key in (("", "frequencies"), ("local_", "local_frequencies")):
        if key in computes:
            found = shape.frequencies(rope)
            few = [len(found), found[1], found[len(found) // 2], found[-1]]
            assert few == pytest.approx(computes[key], rel=1e-5)
    assert [shape.context, shape.score_scale, shape.rope_magnitude] == pytest.approx(
        [computes["context"], computes["scale"], computes.get("magnitude", 1.0)], rel=1e-5
    )
    assert shape.local == {*computes.get("local", [])}
    assert shape.unrotated == {*computes.get("unrotated", [])}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "gemma3"}, "gemma3_text"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "wide"}, "wide"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"intermediate_size": 96.5}, "intermediate_size"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"hidden_size": 3, "head_dim": None}, "head_dim"),
        ({"bos_token_id": [0]}, "bos_token_id"),
        ({"bos_token_id": 256}, "bos_token_id"),
        ({"eos_token_id": [1, "</s>"]}, "eos_token_id"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"model_type": "olmo2", **NO_ROPE, "hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({**GEMMA, "layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({**GEMMA, "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"model_type": "smollm3", **NO_ROPE, "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**PHI, **NO_ROPE, "partial_rotary_factor": 0.35}, "partial_rotary_factor"),
        ({"rope_scaling": ["llama3"]}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.*llama3.*yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling.*llama3.*linear"),
        ({"rope_scaling": {name: item for name, item in SCALING.items() if name != "factor"}}, "factor"),
        ({"rope_scaling": SCALING | {"factor": "eight"}}, "eight"),
        ({"rope_scaling": SCALING | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": PHI_ROPE, "original_max_position_embeddings": 64}, "longrope"),
        (
            {**PHI, "rope_scaling": PHI_ROPE, "original_max_position_embeddings": None},
            "original_max_position",
        ),
        ({**PHI, "rope_scaling": PHI_ROPE | {"short_factor": [1.1] * 16}}, "short_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters"),
        ({"rope_parameters": SCALING | {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}, "partial_rotary"),
    ],
)
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read_architecture(write_config_json(tmp_path, **changes))


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(UsageError):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": 512}, 512),
        ({**PHI, "rope_scaling": PHI_ROPE}, 64),
        ({**PHI, "rope_scaling": {"type": "default"}}, 32768),
        ({"model_type": "qwen2", "sliding_window": 512}, 32768),
    ],
)
def test_a_model_is_read_to_where_its_window_or_its_first_rope_ends(
    tmp_path: Path, changes: dict[str, Any], longest: int
) -> None:
    """transformers has a window of 4096 for Mistral's config.json that says nothing of it."""
    folder = write_config_json(tmp_path, **{**NO_ROPE, "max_position_embeddings": 32768, **changes})
    assert read_architecture(folder).context == longest


def test_ropes_by_transformers_5_are_those_by_transformers_4(tmp_path: Path) -> None:
    old = read_architecture(write_config_json(tmp_path)).frequencies()
    for scaling, same in ((SCALING, True), ({"rope_type": "default"}, False)):
        new = {"rope_theta": None, **NO_ROPE, "rope_parameters": scaling | {"rope_theta": 500000.0}}
        shape = read_architecture(write_config_json(tmp_path, **new))
        assert np.array_equal(shape.frequencies(), old) is same
    kinds = {"full_attention": 1e6, "sliding_attention": 3e4}
    parameters = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in kinds.items()}
    changes = {**GEMMA, "rope_theta": None, "rope_parameters": parameters}
    gemma = read_architecture(write_config_json(tmp_path, **changes))
    assert (gemma.rope_theta, gemma.rope_local_base_freq) == (1e6, 3e4)


def test_a_key_of_another_family_changes_nothing(tmp_path: Path) -> None:
    shape = read_architecture(write_config_json(tmp_path, query_pre_attn_scalar=1024))
    assert shape.score_scale == pytest.approx(0.1767767)


@pytest.mark.parametrize(
    ("changes", "full", "unrotated"),
    [(GEMMA, {5, 11}, set()), ({"model_type": "smollm3", **NO_ROPE}, {*range(13)}, {3, 7, 11})],
)
def test_layers_of_another_kind_are_those_of_transformers_where_config_json_says_nothing(
    tmp_path: Path, changes: dict[str, Any], full: set[int], unrotated: set[int]
) -> None:
    shape = read_architecture(write_config_json(tmp_path, **changes, num_hidden_layers=13))
    assert {*range(13)} - shape.local == full and shape.unrotated == unrotated


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [(1, [2, 1, 3], (1, 2, 3)), ([4, 1], 2, (4, 1, 2)), (None, 2, (2,)), (1, None, (1,))],
)
def test_a_text_ends_as_either_file_says(
    tmp_path: Path, config: Any, generation: Any, ends: tuple[int, ...]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert read_architecture(write_config_json(tmp_path, eos_token_id=config)).eos == ends


class TestWeights:
    """Files are written byte by byte here, with the names and shapes that transformers saves."""

    @pytest.mark.parametrize(
        ("kind", "unread"),
        [
            ("llama", "model.layers.0.self_attn.o_proj.bias"),
            ("llama", "model.layers.0.mlp.gate_proj.bias"),
            ("llama", "model.layers.0.self_attn.q_norm.weight"),
            ("llama", "model.layers.0.self_attn.q_norm.weight"),
            ("qwen2", "model.layers.0.self_attn.o_proj.bias"),
            ("qwen3", "model.layers.0.self_attn.q_proj.bias"),
        ],
    )
    def test_all_are_there_in_their_shapes_and_none_is_left_over(
        self, tmp_path: Path, kind: str, unread: str
    ) -> None:
        shape, shapes = read_architecture(write_config_json(tmp_path, model_type=kind)), shapes_of(kind)
        write_weights(tmp_path, shapes | {"model.layers.0.self_attn.rotary_emb.inv_freq": (16,)})
        require_tensors(tmp_path, shape)
        for changes in ({"num_key_value_heads": 1}, {"head_dim": 16}, {"vocab_size": 250}):
            other = read_architecture(write_config_json(tmp_path, model_type=kind, **changes))
            with pytest.raises(CheckFailed, match=r"\.weight"):
                require_tensors(tmp_path, other)
        write_weights(tmp_path, shapes | {unread: (1,)})
        with pytest.raises(UsageError, match=re.escape(unread)):
            require_tensors(tmp_path, shape)

    @pytest.mark.parametrize(("stored", "told"), [(1, 2), (3, 2)])
    def test_another_count_of_layers_names_both_counts_and_the_key(
        self, tmp_path: Path, stored: int, told: int
    ) -> None:
        write_weights(tmp_path, shapes_of(layers=stored))
        shape = read_architecture(write_config_json(tmp_path, num_hidden_layers=told))
        with pytest.raises(UsageError, match=rf"{stored} layers.+num_hidden_layers.+{told}") as refused:
            require_tensors(tmp_path, shape)
        (key, value) = re.findall(r'"(\w+)": (\d+)', refused.value.fix)[0]
        require_tensors(tmp_path, read_architecture(write_config_json(tmp_path, **{key: int(value)})))

    @pytest.mark.parametrize(
        ("tied", "head", "error"),
        [
            (True, None, None),
            (True, {}, None),
            (True, {"values": {"lm_head.weight": b"\x80\x3f"}}, UsageError),
            (True, {"dtypes": {"lm_head.weight": "F16"}}, UsageError),
            (None, {}, None),
            (None, None, CheckFailed),
        ],
    )
    def test_a_head_is_its_own_unless_it_is_tied_and_then_the_embedding(
        self, tmp_path: Path, tied: bool | None, head: dict[str, Any] | None, error: type[Exception] | None
    ) -> None:
        """As transformers reads a config.json that says nothing."""
        write_weights(tmp_path, shapes_of(tied=head is None), **(head or {}))
        shape = read_architecture(write_config_json(tmp_path, tie_word_embeddings=tied))
        with pytest.raises(error, match=r"lm_head\.weight") if error else contextlib.nullcontext():
            require_tensors(tmp_path, shape)

    @pytest.mark.parametrize(
        ("dtype", "largest", "wrong"),
        [
            ("F64", "7fefffffffffffff", ("7ff0000000000000", "fff8000000000000")),
            ("F32", "7f7fffff", ("7f800000", "ffc00000")),
            ("BF16", "7f7f", ("7f80", "ffc0")),
            ("F16", "7bff", ("7c00", "fe00")),
        ],
    )
    def test_one_that_is_no_number_is_named_before_anything_starts(
        self, tmp_path: Path, dtype: str, largest: str, wrong: tuple[str, str]
    ) -> None:
        """By the bits of IEEE 754; the largest number is one."""
        shape, name = read_architecture(write_config_json(tmp_path)), "model.layers.0.mlp.up_proj.weight"
        for bits in (largest, *wrong):
            value = bytes.fromhex(largest)[::-1] + bytes.fromhex(bits)[::-1]
            write_weights(tmp_path, shapes_of(), dtype, values={name: value})
            with (
                contextlib.nullcontext()
                if bits == largest
                else pytest.raises(CheckFailed, match=re.escape(name))
            ):
                require_tensors(tmp_path, shape)

    WEIGHT = "model.layers.1.mlp.up_proj.weight"

    def drawn(self, scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        shape = shapes_of(layers=2)[self.WEIGHT]
        return (np.random.default_rng(1).standard_normal(shape) * scale).astype(np.float32)

    @pytest.mark.parametrize("scale", [0.02, 0.3, 1.0])
    def test_bytes_of_bf16_that_are_labeled_f16_are_refused_at_the_tensor(
        self, tmp_path: Path, scale: float
    ) -> None:
        """A healthy matrix has values of all sizes, however large it is."""
        shape = read_architecture(write_config_json(tmp_path, num_hidden_layers=2))
        values = self.drawn(scale)
        halves = values.astype(np.float16).tobytes()
        brains = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        write_weights(tmp_path, shapes_of(layers=2), "F16", values={self.WEIGHT: halves})
        require_tensors(tmp_path, shape)
        write_weights(tmp_path, shapes_of(layers=2), "BF16", values={self.WEIGHT: brains})
        require_tensors(tmp_path, shape)
        write_weights(tmp_path, shapes_of(layers=2), "F16", values={self.WEIGHT: brains})
        with pytest.raises(CheckFailed, match=rf"{re.escape(self.WEIGHT)}.*BF16"):
            require_tensors(tmp_path, shape)

    @pytest.mark.parametrize(("times", "refused"), [(5e3, False), (2e4, True), (1e30, True)])
    def test_one_that_is_far_larger_than_in_the_other_layers_is_refused_at_the_tensor(
        self, tmp_path: Path, times: float, refused: bool
    ) -> None:
        shape = read_architecture(write_config_json(tmp_path, num_hidden_layers=2))
        values = {
            self.WEIGHT.replace(".1.", ".0."): self.drawn(0.02).tobytes(),
            self.WEIGHT: self.drawn(0.02 * times).tobytes(),
        }
        write_weights(tmp_path, shapes_of(layers=2), "F32", values=values)
        with (
            pytest.raises(CheckFailed, match=re.escape(self.WEIGHT)) if refused else contextlib.nullcontext()
        ):
            require_tensors(tmp_path, shape)

    def test_a_tensor_of_integers_is_refused_by_its_type(self, tmp_path: Path) -> None:
        shape = read_architecture(write_config_json(tmp_path, num_hidden_layers=2))
        write_weights(tmp_path, shapes_of(layers=2), dtypes={self.WEIGHT: "I32"})
        with pytest.raises(CheckFailed, match=rf"{re.escape(self.WEIGHT)}.*I32"):
            require_tensors(tmp_path, shape)

    def test_a_file_that_is_cut_off_or_missing_is_named(self, tmp_path: Path) -> None:
        write_weights(tmp_path, shapes_of())
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(CheckFailed, match=r"model\.safetensors"):
            shards_of(tmp_path)
        file.unlink()
        index = {"weight": "model-1.safetensors", "other": "model-2.safetensors"}
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
        with pytest.raises(CheckFailed, match=r"model-1\.safetensors"):
            shards_of(tmp_path)

    @pytest.mark.parametrize(
        "text", ['{"weight_map": {', "[]", '{"weight_map": ["1"]}', '{"weight_map": {"a": 1}}']
    )
    def test_a_damaged_index_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / INDEX).write_text(text)
        with pytest.raises(CheckFailed, match=INDEX):
            shards_of(tmp_path)

    def test_a_single_file_is_read_rather_than_an_index(self, tmp_path: Path) -> None:
        """As transformers does."""
        write_weights(tmp_path, shapes_of())
        single = tmp_path / "model.safetensors"
        copied = Path(shutil.copy(single, tmp_path / "model-1.safetensors"))
        names = dict.fromkeys(shapes_of(), copied.name)
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
        assert {tensor.path for tensor in shards_of(tmp_path).values()} == {single}
        single.unlink()
        assert {tensor.path for tensor in shards_of(tmp_path).values()} == {copied}


class TestTokenizer:
    WORDS: ClassVar = {"a": 0, "b": 1, "c": 2}

    def begun(self, folder: Path, form: str, special: str) -> Path:
        write_tokenizer(write_config_json(folder), self.WORDS, form=form, special=special)
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return folder

    def test_it_says_what_begins_a_text_whatever_config_json_names(self, tmp_path: Path) -> None:
        """As in DeepSeek-R1-Distill-Qwen: bos_token_id is 0, and the tokenizer puts 1. Qwen's puts none."""
        assert read_architecture(self.begun(tmp_path, "b $A", "b")).beginning == (1,)
        write_tokenizer(write_config_json(tmp_path, model_type="qwen2"))
        (tmp_path / "tokenizer_config.json").unlink()
        assert read_architecture(tmp_path).beginning == (0,)
        (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
        assert read_architecture(tmp_path).beginning == ()

    @pytest.mark.parametrize("extra", [["c"], {}])
    @pytest.mark.parametrize("template", ["file", "settings", ""])
    def test_one_that_transformers_5_saved_is_read(self, tmp_path: Path, template: str, extra: Any) -> None:
        folder = self.begun(tmp_path, "b $A", "b")
        settings: dict[str, Any] = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}
        settings |= {"bos_token": "b", "extra_special_tokens": extra, "is_local": True}
        words = "{{ bos_token }} {{ messages[0]['content'] }}"
        if template == "settings":
            settings |= {"chat_template": words}
        elif template:
            (folder / "chat_template.jinja").write_text(words)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        assert read_architecture(folder).bos == 1
        if template:
            assert chat_text(folder, "c", "") == "b c"

    @pytest.mark.parametrize(
        ("template", "named"),
        [
            ("{{ raise_exception('no system here') }}", "no system here"),
            ("{% for message in messages %}", "endfor"),
            ("{{ messages[0]['content'] + 1 }}", "str"),
        ],
    )
    def test_a_template_that_raises_is_refused_in_a_line(
        self, tmp_path: Path, template: str, named: str
    ) -> None:
        folder = self.begun(tmp_path, "b $A", "b")
        settings = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(UsageError, match=named) as caught:
            chat_text(folder, "a", "b")
        assert "\n" not in caught.value.message

    @pytest.mark.parametrize(
        ("name", "text", "tokens", "bos", "seen", "expected"),
        [
            ("text", "c a", [2, 0], 1, "", ""),
            ("text", "c a", [2, 0], 0, "[0, 2, 0]", "[1, 2, 0]"),
            ("chat", "b c", [1, 2], 1, "", ""),
            ("chat", "c c", [2, 2], 1, "[1, 2, 2]", "[2, 2]"),
        ],
    )
    def test_what_genie_reads_is_held_to_transformers_own(
        self, tmp_path: Path, name: str, text: str, tokens: list[int], bos: int, seen: str, expected: str
    ) -> None:
        folder = self.begun(tmp_path, "b $A", "b")
        problems = list(tokenizer_differences(folder, name, text, tokens, bos))
        assert len(problems) == bool(seen)
        assert all(f"of a {name}" in line and seen in line and expected in line for line in problems)

    @pytest.mark.parametrize(
        ("form", "special", "named"),
        [
            ("a b $A", "a b", "[0, 1] first"),
            ("a $A b", "a b", "[1] at the end"),
            ("$A b", "b", "[1] at the end"),
        ],
    )
    def test_what_genie_cannot_put_around_a_text_is_refused(
        self, tmp_path: Path, form: str, special: str, named: str
    ) -> None:
        with pytest.raises(UsageError) as refused:
            read_architecture(self.begun(tmp_path, form, special))
        assert named in refused.value.message and "\n" not in refused.value.message

    @pytest.mark.parametrize(("ids", "fits"), [([0, 511], True), ([0, 512], False), ([], False)])
    def test_words_that_the_model_lacks_are_refused(self, tmp_path: Path, ids: list[int], fits: bool) -> None:
        write_tokenizer(tmp_path, {f"word{index}": number for index, number in enumerate(ids)})
        with contextlib.nullcontext() if fits else pytest.raises(UsageError, match="tokenizer"):
            require_tokenizer(tmp_path, 512)
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(CheckFailed, match="tokenizer"):
            require_tokenizer(tmp_path, 512)

    def test_without_settings_it_reads_a_whole_text_though_its_file_cuts_them_off(
        self, tmp_path: Path
    ) -> None:
        """As transformers reads it."""
        file = write_tokenizer(tmp_path, self.WORDS) / "tokenizer.json"
        cut = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": cut}))
        assert encoded_by_transformers(tmp_path, "a a b a b", False) == ([0, 0, 1, 0, 1], [0] * 5)

    @pytest.mark.parametrize(
        ("tokens", "rest"),
        [
            ([0, 5, 6], [5, 6]),
            ([5, 6], [5, 6]),
            ([0, 5, 0, 6], [5, 0, 6]),
            ([0, 0, 5], None),
            ([0], None),
            ([], None),
        ],
        ids=[
            "from a template",
            "plain",
            "each message begins so, as SmolLM 2's",
            "twice",
            "alone",
            "no prompt",
        ],
    )
    def test_what_begins_a_text_is_left_to_genie(self, tokens: list[int], rest: list[int] | None) -> None:
        with contextlib.nullcontext() if rest else pytest.raises(UsageError):
            assert drop_beginning(tokens, 0) == rest
