load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "get_aten_mode_options", "runtime")

def define_common_targets():
    for aten_mode in get_aten_mode_options():
        suffix = "_aten" if aten_mode else ""
        runtime.cxx_library(name = "core" + suffix)
        runtime.cxx_library(name = "event_tracer" + suffix)
