#include "crash.h"

#include <csignal>
#include <cstring>

#include <unistd.h>

#include "exit_code.h"
#include "files.h"

namespace runner {

const char* volatile doing = "starting";

namespace {

void write_stderr(const char* text) {
  const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

void on_crash(int signal) {
  abandon_writing();
  write_stderr("qnn_executor_runner: error: the runtime crashed while ");
  write_stderr(doing);
  write_stderr(signal == SIGABRT ? " (it gave up, see its last message)\n" : " (invalid memory access)\n");
  ::_exit(static_cast<int>(ExitCode::crashed));
}

void on_stop(int signal) {
  abandon_writing();
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

} // namespace

void install_signals() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(signal, on_crash);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal, on_stop);
  }
  // A file that would grow past its limit is then an error of write().
  std::signal(SIGXFSZ, SIG_IGN);
}

} // namespace runner
