#include "runtime_log.h"

#include <cstdio>
#include <mutex>
#include <vector>

#include <executorch/runtime/platform/platform.h>

#include "exit_code.h"

namespace runner {
namespace {

// The first errors name the cause, later ones are consequences.
constexpr size_t kKept = 4;

std::mutex guard;
std::vector<std::string> errors;

void emit(
    et_timestamp_t timestamp,
    et_pal_log_level_t level,
    const char* file,
    const char* /*function*/,
    size_t line,
    const char* message,
    size_t length) {
  const std::lock_guard<std::mutex> lock(guard);
  const double seconds = static_cast<double>(timestamp) / 1e9;
  // Names of a damaged model may contain any bytes.
  const std::string text = printable({message, length});
  std::fprintf(stderr, "%c %.6f executorch:%s:%zu] %s\n", level, seconds, file, line, text.c_str());
  if ((level == kError || level == kFatal) && errors.size() < kKept) {
    errors.push_back(text);
  }
}

} // namespace

void install_log() {
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(&emit, __FILE__));
}

std::string take_logged_errors() {
  const std::lock_guard<std::mutex> lock(guard);
  std::string text;
  for (const std::string& error : errors) {
    text += "\n    " + error;
  }
  errors.clear();
  return text;
}

} // namespace runner
