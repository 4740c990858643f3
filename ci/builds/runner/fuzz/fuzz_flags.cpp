// Any bytes as a command line: arguments are separated by NUL, as the kernel passes them.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "exit_code.h"
#include "flags.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> arguments;
  std::string argument;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == 0) {
      arguments.push_back(argument);
      argument.clear();
    } else {
      argument += static_cast<char>(data[i]);
    }
  }
  arguments.push_back(argument);
  try {
    const runner::Flags flags = runner::parse_flags(arguments);
    if (flags.iteration < 1 || flags.warm_up < 0 || flags.method_index < 0 || flags.debug_buffer_size < 1) {
      std::abort();
    }
  } catch (const runner::Failure& failure) {
    if (failure.code() != runner::ExitCode::usage || std::string(failure.what()).empty()) {
      std::abort();
    }
  }
  return 0;
}
