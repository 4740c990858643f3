#include "runtime_log.h"

#include <cstdio>
#include <deque>
#include <mutex>

#include <executorch/runtime/platform/platform.h>

namespace runner {
namespace {

constexpr size_t kKept = 6;

std::mutex guard;
std::deque<std::string> errors;

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
  std::fprintf(stderr, "%c %.6f executorch:%s:%zu] %.*s\n", level, seconds, file, line, static_cast<int>(length), message);
  if (level == kError || level == kFatal) {
    errors.emplace_back(message, length);
    if (errors.size() > kKept) {
      errors.pop_front();
    }
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
