load("@fbsource//tools/build_defs:default_platform_defs.bzl", "ANDROID")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "get_oss_build_kwargs", "runtime")

def define_common_targets():
    runtime.cxx_library(
        name = "runner_lib",
        srcs = glob(["runner/*.cpp"]),
        exported_headers = glob(["runner/*.h"]),
        compiler_flags = ["-Wno-global-constructors"],
        exported_deps = ["//executorch/backends/qualcomm/runtime:runtime"],
        platforms = [ANDROID],
        **get_oss_build_kwargs()
    )

    runtime.cxx_binary(
        name = "qnn_llama_runner",
        srcs = ["qnn_llama_runner.cpp"],
        deps = [":runner_lib"],
        platforms = [ANDROID],
        **get_oss_build_kwargs()
    )
