#include <executorch/backends/qualcomm/runtime/QnnManager.h>
#include <executorch/runtime/platform.h>

extern "C" int qnn_execute(
    const char* program,
    unsigned long program_size,
    const char* input,
    char* output,
    unsigned long size) {
  const int arch = executorch::qnn::arch_of(program, program_size);
  if (arch == 0) {
    ET_LOG("Unknown QNN BinaryInfo version");
    return 5000;
  }
  if (const int error = executorch::qnn::open_device(arch)) {
    return error;
  }
  for (unsigned long i = 0; i < size; ++i) {
    output[i] = static_cast<char>(input[i] + 1);
  }
  return 0;
}
