#include "exit_code.h"

#include <cstdint>
#include <cstdio>

namespace runner {
namespace {

std::string escaped(const std::string& text, const std::string& kept) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = (byte < 0x20 || byte == 0x7f) && kept.find(text[i]) == std::string::npos;
    const size_t length = control ? 0 : utf8_length(text, i);
    if (length == 0) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", byte);
      out += code;
    } else {
      out.append(text, i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return out;
}

} // namespace

const std::vector<ExitCodeMeaning>& exit_codes() {
  static const std::vector<ExitCodeMeaning> codes = {
      {ExitCode::ok, "every inference ran and every output was written"},
      {ExitCode::usage, "usage error: unknown flag, missing or bad value"},
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

size_t utf8_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  size_t length = 0;
  uint32_t character = 0;
  if (first < 0x80) {
    return 1;
  }
  if ((first & 0xe0) == 0xc0) {
    length = 2;
    character = first & 0x1fu;
  } else if ((first & 0xf0) == 0xe0) {
    length = 3;
    character = first & 0x0fu;
  } else if ((first & 0xf8) == 0xf0) {
    length = 4;
    character = first & 0x07u;
  }
  if (length == 0 || at + length > text.size()) {
    return 0;
  }
  for (size_t i = at + 1; i < at + length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
    character = character << 6 | (byte(i) & 0x3fu);
  }
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character < 0xe000;
  return character < least[length] || character > 0x10ffff || surrogate ? 0 : length;
}

std::string shown(const std::string& text) {
  constexpr size_t longest = 300;
  return "'" + escaped(text.substr(0, longest), "") + (text.size() > longest ? "...'" : "'");
}

std::string printable(const std::string& text) {
  return escaped(text, "\n\t");
}

} // namespace runner
