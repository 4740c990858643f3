#pragma once

namespace executorch {
namespace qnn {
int add(int one, int other);
// The API of the SDK that this was compiled against.
const char* api();
// The Hexagon arch that a program names, 0 for none.
int arch_of(const char* program, unsigned long size);
// Opens the HTP library and, on a device, looks for the skel; 0 or the number of a QNN error.
int open_device(int arch);
} // namespace qnn
} // namespace executorch

// Copies `size` bytes from input to output, each plus one: 0 or the number of a QNN error.
extern "C" int qnn_execute(
    const char* program,
    unsigned long program_size,
    const char* input,
    char* output,
    unsigned long size);
