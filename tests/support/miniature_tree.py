"""A miniature ExecuTorch tree: the build files, directories and pitfalls of its Qualcomm backend, with
stand-ins for the code. `manifests/parity.toml` fits it as it stands, and CMake configures it.

Its build files lie in miniature/, each at its place in the tree; the rest is made here."""

from __future__ import annotations

from pathlib import Path

QUALCOMM = "backends/qualcomm"
SCRIPT = f"{QUALCOMM}/scripts/download_qnn_sdk.py"
BACKENDS = f"{QUALCOMM}/runtime/backends"

RUNTIME = ("QnnBackendOptions", "QnnExecuTorchBackend", "QnnManager", "SharedBuffer", "Utils")
COMMON = (
    *("QnnBackendCache", "QnnBackendCommon", "QnnBackendFactory", "QnnBackendUnifiedRegistry"),
    *("QnnContextCommon", "QnnCustomProtocol", "QnnDeviceCommon", "QnnGraphCommon", "QnnImplementation"),
    *("QnnLogger", "QnnMemManager", "QnnOpPackageManager", "QnnProfiler", "QnnSysImplementation"),
)
COMMON_HEADERS = ("QnnDlcManager", "QnnFunctionInterface", "QnnSysFunctionInterface")
LIBRARIES = {
    "qnn_backend_cache": ("QnnBackendCache", "htp/HtpBackendCache"),
    "qnn_backend_unified_registry": ("QnnBackendUnifiedRegistry",),
    "qnn_custom_protocol": ("QnnCustomProtocol",),
    "qnn_factory": ("QnnBackendFactory",),
    "qnn_implementation": ("QnnImplementation",),
    "qnn_logger": ("QnnLogger",),
    "qnn_mem_manager": ("QnnMemManager",),
    "qnn_op_package_manager": ("QnnOpPackageManager",),
    "qnn_profiler": ("QnnProfiler",),
    "qnn_sys_implementation": ("QnnSysImplementation",),
}
"""Libraries of runtime/backends that are only a header and a source each."""

KINDS = {
    "gpu": (
        ("GpuBackend", "GpuBackendCustomConfig", "GpuContext", "GpuGraph", "GpuGraphCustomConfig"),
        ("GpuDevice", "GpuContextCustomConfig"),
        ("GpuContextCustomConfig",),
    ),
    "htp": (
        ("HtpBackendCache", "HtpContext", "HtpDevice", "HtpGraph"),
        (
            "HtpBackend",
            "HtpContextCustomConfig",
            "HtpDeviceCustomConfig",
            "HtpDevicePlatformInfoConfig",
            "HtpGraphCustomConfig",
        ),
        (
            "HtpContextCustomConfig",
            "HtpDeviceCustomConfig",
            "HtpDevicePlatformInfoConfig",
            "HtpGraphCustomConfig",
        ),
    ),
    "ir": ((), ("IrBackend", "IrContext"), ("IrContext", "QnnDlcManager")),
    "lpai": (
        ("LpaiBackend", "LpaiBackendCustomConfig", "LpaiContext", "LpaiGraph"),
        ("LpaiDevice", "LpaiContextCustomConfig"),
        ("LpaiContextCustomConfig", "LpaiDevice"),
    ),
}
"""Each backend's files: sources with headers, headers alone, sources that differ between host and target."""

PYTHON = {
    "_passes": 62,
    "_passes/backends/gpu": 1,
    "_passes/backends/htp": 2,
    "_passes/backends/lpai": 2,
    "builders": 98,
    "debugger": 6,
    "genai_pipeline": 3,
    "genai_pipeline/stages": 4,
    "partition": 4,
    "quantizer": 6,
    "quantizer/annotators": 9,
    "serialization": 4,
    "utils": 8,
}
"""How many modules each Python package has."""

PAL = f"{QUALCOMM}/runtime/pal"
PLATFORM = ("DynamicLoading", "Path")
"""Parts of the layer over the platform: a header each, and a source for each system."""

OF_WHISPER = {
    "decoder_runner": "decoder",
    "kv_manager": "encoder",
    "  extension_llm_runner\n": "",
    "    ${CMAKE_CURRENT_LIST_DIR}/runner/runner.cpp\n": (
        "    ${CMAKE_CURRENT_LIST_DIR}/runner/runner.cpp\n"
        "    ${EXECUTORCH_ROOT}/extension/llm/sampler/sampler.cpp\n"
    ),
    "  custom_ops\n  quantized_ops_lib\n  quantized_kernels\n": "  full_portable_ops_lib\n",
}
"""What its runner's CMake file has in place of the llama runner's."""

WRAPPERS = ("OpWrapper", "QuantizeParamsWrapper", "TensorWrapper")
WRAPPER_HEADERS = ("ParamWrapper", "ScalarParamWrapper", "TensorParamWrapper")

_LOAD_RUNTIME = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'

_BUILD_FILES = Path(__file__).with_name("miniature")
EXAMPLES = "examples/qualcomm"
LLAMA = f"{EXAMPLES}/oss_scripts/llama"
WHISPER = f"{EXAMPLES}/oss_scripts/whisper"
ANDROID = "extension/android"
JAVA = f"{ANDROID}/executorch_android/src/main/java/org/pytorch/executorch"


def write(root: Path) -> Path:
    """Write the tree and return it."""
    for path, text in files().items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


def files() -> dict[str, str]:
    texts = {
        path.relative_to(_BUILD_FILES).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(_BUILD_FILES.rglob("*"))
        if path.is_file()
    }
    beside_targets = texts.pop("BUCK")
    texts |= _libraries_of_python()
    texts[f"{BACKENDS}/CMakeLists.txt"] += _plain_libraries()
    texts[f"{WHISPER}/targets.bzl"] = texts[f"{LLAMA}/targets.bzl"].replace("llama", "whisper")
    runner = texts[f"{LLAMA}/CMakeLists.txt"].replace("llama", "whisper")
    for old, new in OF_WHISPER.items():
        runner = runner.replace(old, new)
    texts[f"{WHISPER}/CMakeLists.txt"] = runner
    for path in [path for path in texts if path.endswith("/targets.bzl") and not path.startswith("shim_et/")]:
        texts[path.replace("targets.bzl", "BUCK")] = beside_targets
    texts[f"{QUALCOMM}/BUCK"] += _BUCK_FILE_TOP
    return {**texts, SCRIPT: "VERSION = 1\n", **_native(), **_python(), **_examples(), **_archive()}


def _native() -> dict[str, str]:
    runtime = f"{QUALCOMM}/runtime"
    both = [f"{runtime}/{name}" for name in ("Logging", *RUNTIME)]
    both += [f"{BACKENDS}/{name}" for name in COMMON]
    both += [f"{QUALCOMM}/aot/wrappers/{name}" for name in WRAPPERS]
    both += [f"{QUALCOMM}/aot/python/PyQnnManagerAdaptor", f"{BACKENDS}/direct_mode/QnnExecuTorchIdlWrapper"]
    headers = [f"{runtime}/QnnExecuTorch", *(f"{BACKENDS}/{name}" for name in COMMON_HEADERS)]
    headers += [f"{QUALCOMM}/aot/wrappers/{name}" for name in WRAPPER_HEADERS]
    sources = [f"{BACKENDS}/direct_mode/qnn_executorch_imp"]
    for kind, (pairs, alone, halves) in KINDS.items():
        both += [f"{BACKENDS}/{kind}/{name}" for name in pairs]
        headers += [f"{BACKENDS}/{kind}/{name}" for name in alone]
        sources += [f"{BACKENDS}/{kind}/{half}/{name}" for half in ("host", "target") for name in halves]
    return {
        **{f"{path}.h": "#pragma once\n" for path in (*both, *headers)},
        **{f"{path}.cpp": f"// {Path(path).name}\n" for path in (*both, *sources)},
        f"{BACKENDS}/direct_mode/qnn_executorch.idl": "interface qnn_executorch {};\n",
        f"{QUALCOMM}/serialization/qc_compiler_spec.fbs": "table Options {}\n",
        **{f"{PAL}/include/pal/{name}.h": "#pragma once\n" for name in PLATFORM},
        **{
            f"{PAL}/src/{system}/{name}.cpp": "// pal\n"
            for name in PLATFORM
            for system in ("linux", "windows")
        },
    }


def _python() -> dict[str, str]:
    texts = {f"{QUALCOMM}/{name}.py": "# module\n" for name in ("qnn_preprocess", "export_utils")}
    texts |= {f"{QUALCOMM}/recipes/{name}.py": "# module\n" for name in ("__init__", "provider", "types")}
    texts[f"{QUALCOMM}/__init__.py"] = "from .scripts.download_qnn_sdk import VERSION\n"
    # Of the tests Buck has a few.
    texts |= {f"{QUALCOMM}/tests/{name}.py": "# tests\n" for name in ("models", "utils", "conftest")}
    texts[f"{QUALCOMM}/tests/test_qnn_delegate.py"] = "# tests\n"
    texts |= {f"{QUALCOMM}/tests/rework/htp/op/v{arch}/test.py": "# tests\n" for arch in (68, 73, 79)}
    texts[f"{QUALCOMM}/custom_op/annotator.py"] = "# module\n"
    builder = "from executorch.backends.qualcomm.builders.builders_0 import Builder\n"
    texts |= {f"{QUALCOMM}/{folder}/__init__.py": "# (c)\n" for folder in ("aot", "aot/python", "tests")}
    for package, count in PYTHON.items():
        name = package.rpartition("/")[2].strip("_")
        texts |= {f"{QUALCOMM}/{package}/{name}_{number}.py": "# module\n" for number in range(count)}
    # One of these libraries depends on the other one's, as far as libraries without circles can.
    texts |= dict.fromkeys((f"{QUALCOMM}/partition/partition_0.py", f"{QUALCOMM}/utils/utils_0.py"), builder)
    return texts


def _libraries_of_python() -> dict[str, str]:
    libraries = {
        "_passes": _python_library("passes", '["*.py", "backends/*/*.py"]'),
        "builders": _python_library("builders", '[\n            "*.py",\n        ]'),
        "debugger": _python_library("debugger", '["**/*.py"]'),
        "quantizer": _python_library(
            "quantizer",
            '[\n            "*.py",\n            "*/*.py",\n        ]',
            '            "//executorch/backends/transforms:decompose_sdpa",\n',
        ),
        "utils": _python_library("utils", '["*.py"]'),
    }
    return {f"{QUALCOMM}/{folder}/targets.bzl": text for folder, text in libraries.items()}


def _python_library(name: str, patterns: str, dependencies: str = "") -> str:
    deps = f"        deps = [\n{dependencies}        ],\n" if dependencies else ""
    return f"""\
{_LOAD_RUNTIME}
def define_common_targets():
    runtime.python_library(
        name = "{name}",
        srcs = glob({patterns}),
        visibility = ["PUBLIC"],
{deps}    )
"""


_BUCK_FILE_TOP = """
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

fbcode_target(
    _kind = runtime.python_library,
    name = "export_utils",
    srcs = ["export_utils.py"],
    deps = ["//caffe2:torch"],
)
"""


def _plain_libraries() -> str:
    text = ""
    for library, names in LIBRARIES.items():
        headers = "\n         ".join(f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.h" for name in names)
        sources = "\n          ".join(f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp" for name in names)
        text += f"\ntarget_sources(\n  {library}\n  PUBLIC {headers}\n  PRIVATE {sources}\n)\n"
    return text


def _examples() -> dict[str, str]:
    """The runners' sources. CMake builds them as a project of their own."""
    runner = [f"{LLAMA}/runner/{name}" for name in ("decoder_runner", "kv_manager", "runner")]
    runner += [f"{WHISPER}/runner/{name}" for name in ("decoder", "encoder", "runner")]
    sources = [f"{EXAMPLES}/executor_runner/qnn_executor_runner", f"{LLAMA}/qnn_llama_runner", *runner]
    sources.append(f"{WHISPER}/qnn_whisper_runner")
    sources.append(f"{EXAMPLES}/qaihub_scripts/llama/qaihub_llama3_8b_runner")
    others = ("direct_executor_runner/qnn_executor_direct_runner", "custom_op/package/src/Op")
    sources += [f"{EXAMPLES}/{name}" for name in others]
    sources += [f"examples/portable/executor_runner/{name}" for name in ("executor_runner", "options")]
    sources += ["extension/data_loader/file_data_loader", "extension/llm/sampler/sampler"]
    multimodal = f"{LLAMA}/runner/multimodal_runner"
    sources.append(f"{multimodal}/multimodal_runner")
    headers = [*runner, f"{LLAMA}/runner/utils", f"{multimodal}/chat_template"]
    modules = ("utils", "scripts/export_example", "scripts/deeplab_v3", "oss_scripts/llama/llama")
    return {
        **{f"{path}.cpp": "// runner\n" for path in sources},
        **{f"{path}.h": "#pragma once\n" for path in headers},
        **{f"{EXAMPLES}/{name}.py": "# module\n" for name in modules},
    }


def _archive() -> dict[str, str]:
    """The sources of Android's archive. CMake lists the native ones, and Gradle takes all others."""
    java = ("EValue.java", "Module.java", "extension/llm/LlmModule.kt", "extension/asr/AsrModule.kt")
    native = ("jni_layer", "jni_helper", "log", "jni_layer_training", "jni_layer_llama", "jni_layer_asr")
    return {
        **{f"{ANDROID}/jni/{name}.cpp": "// archive\n" for name in native},
        **{f"{ANDROID}/jni/{name}.h": "#pragma once\n" for name in ("jni_helper", "log")},
        **{f"{JAVA}/{name}": "// archive\n" for name in java},
        f"{ANDROID}/executorch_android/src/test/java/EValueTest.java": "// a test\n",
    }
