"""The lane's own environment, as the profile states it."""

from __future__ import annotations

from provisioning.lock_files import inputs_of, lock_path
from provisioning.manifest import load_profile

PINS = load_profile("wheels").onnx


def test_what_the_profile_pins_is_what_is_locked() -> None:
    locked = lock_path("onnx").read_text(encoding="utf-8")
    assert {name for name, version in PINS.items() if f"\n{name}=={version} " not in locked} == {"torch"}


def test_torch_is_named_as_pip_takes_it_with_a_build_added() -> None:
    line = f"torch=={PINS['torch']}"
    assert f"# torch: {line}\n" in lock_path("onnx").read_text(encoding="utf-8")
    assert line in inputs_of("onnx")


def test_tests_have_the_same_provider_as_the_lane() -> None:
    assert {text for text in inputs_of("onnx") if "onnx" in text} <= set(inputs_of("tests"))
