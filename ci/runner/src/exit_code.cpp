#include "exit_code.h"

#include <cstdio>

namespace runner {

const std::vector<ExitCodeMeaning>& exit_codes() {
  static const std::vector<ExitCodeMeaning> codes = {
      {ExitCode::ok, "every inference ran and every output was written"},
      {ExitCode::usage, "wrong use: unknown flag, missing or bad value"},
      {ExitCode::model_missing, "the model file is missing or cannot be read"},
      {ExitCode::model_bad, "the model file is not a program this runtime can read"},
      {ExitCode::method_missing, "the program has no method of that index"},
      {ExitCode::backend_missing, "the program needs a backend that this runner does not have"},
      {ExitCode::list_missing, "the input list is missing or cannot be read"},
      {ExitCode::list_bad, "the input list is empty or a line of it is wrong"},
      {ExitCode::input_missing, "an input file is missing or cannot be read"},
      {ExitCode::input_size, "an input file does not have the size of its tensor"},
      {ExitCode::shape_bad, "a shape file is missing or does not fit the method"},
      {ExitCode::output_unwritable, "an output cannot be written"},
      {ExitCode::debug_buffer_small, "--debug_buffer_size is too small for the intermediate outputs"},
      {ExitCode::load_failed, "the method could not be loaded: delegate, kernel or memory"},
      {ExitCode::option_refused, "the QNN backend refused a runtime option"},
      {ExitCode::inference_failed, "an inference failed"},
      {ExitCode::output_bad, "an output is not what --output_shape_path says"},
      {ExitCode::out_of_memory, "not enough memory"},
      {ExitCode::crashed, "the runtime crashed or gave up"},
  };
  return codes;
}

std::string shown(const std::string& text) {
  constexpr size_t longest = 300;
  std::string out = "'";
  for (size_t i = 0; i < text.size() && i < longest; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    } else {
      out += text[i];
    }
  }
  return out + (text.size() > longest ? "...'" : "'");
}

} // namespace runner
