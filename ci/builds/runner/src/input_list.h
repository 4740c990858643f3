// Reads input lists and shape files. These are pure functions over text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace runner {

struct ListLine {
  size_t number;
  std::vector<std::string> files;
};

// One element per inference. Blank lines and lines that begin with `#` are skipped; with `keep_blank`,
// which a method without inputs needs, a blank line is an inference of no files.
// Messages call the text `name`. Throws Failure(ExitCode::list_bad).
std::vector<ListLine> parse_input_list(std::string_view text, const std::string& name, bool keep_blank = false);

using Shape = std::vector<int32_t>;

struct ShapeLine {
  size_t number;
  Shape shape;
};

// One shape a line: `1, 3, 8`, also with brackets or a trailing comma; a blank line is a scalar's shape.
// Throws Failure(ExitCode::shape_bad).
std::vector<ShapeLine> parse_shapes(std::string_view text, const std::string& name);

} // namespace runner
