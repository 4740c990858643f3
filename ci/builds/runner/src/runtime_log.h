// ExecuTorch's log: printed on stderr at once, with the first errors kept for our own messages.
#pragma once

#include <string>

namespace runner {

void install_log();

// The first errors logged since the last call, one a line, each indented; empty when there are none.
std::string take_logged_errors();

} // namespace runner
