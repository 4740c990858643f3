#include "input_list.h"

#include <charconv>
#include <system_error>

#include "exit_code.h"

namespace runner {
namespace {

// Calls `take(number, line)` for every line, without its line end. A final newline does not begin another line.
template <typename Take>
void each_line(std::string_view text, Take take) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.substr(0, byte_order_mark.size()) == byte_order_mark) {
    text.remove_prefix(byte_order_mark.size());
  }
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    take(number, line);
  }
}

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

std::string at(const std::string& name, size_t number) {
  return name + ":" + std::to_string(number) + ": ";
}

std::vector<std::string> split_names(std::string_view line, const std::string& name, size_t number) {
  std::vector<std::string> names;
  size_t i = 0;
  while (i < line.size()) {
    if (is_space(line[i])) {
      ++i;
      continue;
    }
    std::string word;
    if (line[i] != '"') {
      while (i < line.size() && !is_space(line[i])) {
        word += line[i++];
      }
    } else {
      const size_t opened = i++;
      while (i < line.size() && line[i] != '"') {
        const bool escape = line[i] == '\\' && i + 1 < line.size() && (line[i + 1] == '"' || line[i + 1] == '\\');
        i += escape ? 1 : 0;
        word += line[i++];
      }
      if (i == line.size()) {
        throw Failure(
            ExitCode::list_bad,
            at(name, number) + "expected a closing quote for the one in column " + std::to_string(opened + 1) +
                ", found the end of the line");
      }
      ++i;
      if (i < line.size() && !is_space(line[i])) {
        throw Failure(
            ExitCode::list_bad,
            at(name, number) + "expected a space after the quote in column " + std::to_string(i) + ", found " +
                shown(std::string(1, line[i])));
      }
      if (word.empty()) {
        throw Failure(ExitCode::list_bad, at(name, number) + "expected a file name, found an empty one");
      }
    }
    names.push_back(std::move(word));
  }
  return names;
}

} // namespace

std::vector<ListLine> parse_input_list(std::string_view text, const std::string& name, bool keep_blank) {
  std::vector<ListLine> lines;
  each_line(text, [&](size_t number, std::string_view line) {
    if (line.find('\0') != std::string_view::npos) {
      throw Failure(
          ExitCode::list_bad, at(name, number) + "expected text, found a NUL byte", "is this a raw tensor instead of a list?");
    }
    if (!line.empty() && line.front() == '#') {
      return;
    }
    std::vector<std::string> files = split_names(line, name, number);
    if (!files.empty() || keep_blank) {
      lines.push_back({number, std::move(files)});
    }
  });
  return lines;
}

std::vector<ShapeLine> parse_shapes(std::string_view text, const std::string& name) {
  std::vector<ShapeLine> shapes;
  each_line(text, [&](size_t number, std::string_view line) {
    const auto bad = [&] {
      return Failure(
          ExitCode::shape_bad,
          at(name, number) + "expected sizes like `1, 3, 8`, found " + shown(std::string(line)));
    };
    const auto trim = [](std::string_view part) {
      while (!part.empty() && is_space(part.front())) {
        part.remove_prefix(1);
      }
      while (!part.empty() && is_space(part.back())) {
        part.remove_suffix(1);
      }
      return part;
    };
    std::string_view rest = trim(line);
    if (!rest.empty() && (rest.front() == '(' || rest.front() == '[')) {
      const char closing = rest.front() == '(' ? ')' : ']';
      if (rest.size() < 2 || rest.back() != closing) {
        throw bad();
      }
      rest = trim(rest.substr(1, rest.size() - 2));
    }
    Shape shape;
    while (!rest.empty()) {
      const size_t comma = rest.find(',');
      const std::string_view word = trim(rest.substr(0, comma));
      int32_t size = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
      if (word.empty() || error != std::errc() || end != word.data() + word.size() || size < 0) {
        throw bad();
      }
      shape.push_back(size);
      rest = comma == std::string_view::npos ? std::string_view() : trim(rest.substr(comma + 1));
    }
    shapes.push_back({number, std::move(shape)});
  });
  return shapes;
}

} // namespace runner
