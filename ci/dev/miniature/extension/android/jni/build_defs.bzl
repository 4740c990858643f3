load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

ET_JNI_COMPILER_FLAGS = ["-frtti", "-fexceptions"] + (
    ["-DEXECUTORCH_GUARDED_THREADPOOL"] if not runtime.is_oss else []
)
