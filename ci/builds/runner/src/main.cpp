// qnn_executor_runner: see --help.

#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <executorch/runtime/platform/runtime.h>

#include "crash.h"
#include "exit_code.h"
#include "flags.h"
#include "program.h"
#include "runtime_log.h"
#include "session.h"

namespace runner {
namespace {

std::string version() {
  std::string text = "qnn_executor_runner for ExecuTorch " EXECUTORCH_VERSION "\nbackends:";
  for (const std::string& backend : backends_at_hand()) {
    text += " " + backend;
  }
#ifndef RUNNER_HAS_QNN
  text += "\nbuilt without the QNN backend: this ExecuTorch package has none for the target";
#endif
  return text + "\n";
}

int guarded(const std::vector<std::string>& arguments, std::chrono::steady_clock::time_point started) {
  try {
    const Flags flags = parse_flags(arguments);
    if (flags.help) {
      std::fputs(usage().c_str(), stdout);
      return 0;
    }
    if (flags.version) {
      std::fputs(version().c_str(), stdout);
      return 0;
    }
    run_session(flags, started);
    return 0;
  } catch (const Failure& failure) {
    std::fprintf(stderr, "qnn_executor_runner: error: %s\n", printable(failure.what()).c_str());
    if (!failure.remedy().empty()) {
      std::fprintf(stderr, "  try: %s\n", printable(failure.remedy()).c_str());
    }
    return static_cast<int>(failure.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "qnn_executor_runner: error: out of memory while %s\n", doing);
    return static_cast<int>(ExitCode::out_of_memory);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qnn_executor_runner: error: %s while %s\n", error.what(), doing);
    return static_cast<int>(ExitCode::crashed);
  }
}

} // namespace
} // namespace runner

int main(int argc, char** argv) {
  const auto started = std::chrono::steady_clock::now();
  runner::install_signals();
  runner::install_log();
  executorch::runtime::runtime_init();
  return runner::guarded({argv + (argc > 0 ? 1 : 0), argv + argc}, started);
}
