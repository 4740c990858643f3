load(
    "@fbsource//tools/build_defs:default_platform_defs.bzl",
    "ANDROID",
    "CXX",
)
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

def define_common_targets():
    runtime.cxx_binary(
        name = "qnn_executor_runner",
        srcs = ["qnn_executor_runner.cpp"],
        deps = [
            "//executorch/backends/qualcomm/runtime:runtime",
            "//executorch/kernels/quantized:generated_lib",
        ],
        platforms = [ANDROID],
        external_deps = ["gflags"],
    )
