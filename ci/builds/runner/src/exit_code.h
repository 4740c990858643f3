// How the process ends: an exit code for each kind of error, and the message with it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace runner {

enum class ExitCode : int {
  ok = 0,
  usage = 2,
  model_missing = 10,
  model_bad = 11,
  method_missing = 12,
  backend_missing = 13,
  list_missing = 20,
  list_bad = 21,
  input_missing = 22,
  input_size = 23,
  shape_bad = 24,
  output_unwritable = 30,
  debug_buffer_small = 31,
  load_failed = 40,
  option_refused = 41,
  inference_failed = 42,
  output_bad = 43,
  out_of_memory = 50,
  crashed = 51,
};

struct ExitCodeMeaning {
  ExitCode code;
  const char* meaning;
};

// Every code, in the order of --help.
const std::vector<ExitCodeMeaning>& exit_codes();

// An expected error. The message names the thing, what was expected and what was found.
class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& message, std::string remedy = "")
      : std::runtime_error(message), code_(code), remedy_(std::move(remedy)) {}

  ExitCode code() const { return code_; }
  const std::string& remedy() const { return remedy_; }

 private:
  ExitCode code_;
  std::string remedy_;
};

// A name or value for messages: quoted, with everything escaped that is not printable UTF-8.
std::string shown(const std::string& text);

// A message for a terminal: like `shown`, but without quotes, of any length, with its line ends.
std::string printable(const std::string& text);

// The length in bytes of the UTF-8 character at `at`; 0 if the bytes are not one.
size_t utf8_length(const std::string& text, size_t at);

} // namespace runner
