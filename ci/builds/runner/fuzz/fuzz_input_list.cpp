// Any bytes as an input list and as a shape file.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "exit_code.h"
#include "input_list.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool keep_blank : {false, true}) {
    try {
      size_t last = 0;
      for (const runner::ListLine& line : runner::parse_input_list(text, "list", keep_blank)) {
        if (line.number <= last || (line.files.empty() && !keep_blank)) {
          std::abort();
        }
        last = line.number;
        for (const std::string& file : line.files) {
          if (file.empty() || file.find('\0') != std::string::npos || file.find('\n') != std::string::npos) {
            std::abort();
          }
        }
      }
    } catch (const runner::Failure& failure) {
      if (failure.code() != runner::ExitCode::list_bad) {
        std::abort();
      }
    }
  }
  try {
    for (const runner::ShapeLine& line : runner::parse_shapes(text, "shapes")) {
      for (const int32_t extent : line.shape) {
        if (extent < 0) {
          std::abort();
        }
      }
    }
  } catch (const runner::Failure& failure) {
    if (failure.code() != runner::ExitCode::shape_bad) {
      std::abort();
    }
  }
  return 0;
}
