load("@fbcode_macros//build_defs:python_binary.bzl", "python_binary")
load("@fbsource//tools/build_defs:default_platform_defs.bzl", "ANDROID")
load("@fbsource//tools/build_defs:fbsource_utils.bzl", "is_fbcode")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "get_oss_build_kwargs", "runtime")

def define_common_targets():
    if is_fbcode():
        python_binary(
            name = "llama",
            main_function = "executorch.examples.qualcomm.oss_scripts.llama.llama.main",
            preload_deps = ["//executorch/extension/llm/custom_ops:model_sharding_py"],
        )
    else:
        _define_runner()

def _define_runner():
    runtime.cxx_library(
        name = "runner_lib",
        srcs = glob(["runner/*.cpp"]),
        exported_headers = glob(["runner/*.h"]),
        compiler_flags = [
            "-Wno-global-constructors",
            "-Wunused-command-line-argument",
        ],
        deps = [
            "//executorch/extension/llm/runner:stats",
            "//executorch/extension/tensor:tensor",
            "//executorch/kernels/quantized:generated_lib",
        ],
        exported_deps = [
            "//executorch/extension/module:module",
            "//executorch/extension/evalue_util:print_evalue",
            "//executorch/backends/qualcomm/runtime:runtime",
            "//pytorch/tokenizers:hf_tokenizer",
        ],
        platforms = [ANDROID],
        **get_oss_build_kwargs()
    )

    runtime.cxx_binary(
        name = "qnn_llama_runner",
        srcs = ["qnn_llama_runner.cpp"],
        deps = [
            ":runner_lib",
            "//executorch/extension/threadpool:threadpool",
        ],
        platforms = [ANDROID],
        **get_oss_build_kwargs()
    )
