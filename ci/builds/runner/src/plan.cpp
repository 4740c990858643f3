#include "plan.h"

#include <utility>

#include <unistd.h>

#include "exit_code.h"
#include "files.h"

namespace runner {
namespace {

std::vector<Shape> read_shapes(
    const std::string& path,
    const std::string& flag,
    const std::vector<Value>& values,
    size_t inferences) {
  if (path.empty()) {
    return {};
  }
  std::vector<ShapeLine> lines = parse_shapes(read_text(path, flag, ExitCode::shape_bad), path);
  const size_t once = values.size();
  const size_t each = once * inferences;
  while (lines.size() > once && lines.size() != each && lines.back().shape.empty()) {
    lines.pop_back();
  }
  if (lines.size() != once && lines.size() != each) {
    throw Failure(
        ExitCode::shape_bad,
        flag + " " + shown(path) + ": expected " + std::to_string(once) + " shapes, or " + std::to_string(each) +
            " for all " + std::to_string(inferences) + " inferences, found " + std::to_string(lines.size()));
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < each; ++i) {
    const ShapeLine& line = lines[i % lines.size()];
    const Value& value = values[i % once];
    const bool fits = value.is_tensor() ? line.shape.size() == value.shape.size() : line.shape.empty();
    bool within = fits;
    for (size_t d = 0; within && d < line.shape.size(); ++d) {
      within = line.shape[d] <= value.shape[d];
    }
    if (!within) {
      throw Failure(
          ExitCode::shape_bad,
          path + ":" + std::to_string(line.number) + ": expected a shape within " + value.described() + ", found " +
              shown(line.shape));
    }
    shapes.push_back(line.shape);
  }
  return shapes;
}

// Like `size_of_file`, with a hint if the file lies beside the list.
size_t size_of_input(const std::string& file, const std::string& what, const std::string& list) {
  try {
    return size_of_file(file, what, ExitCode::input_missing);
  } catch (const Failure& failure) {
    const std::string beside = list.substr(0, list.find_last_of('/') + 1) + file;
    if (file.front() == '/' || beside == file || ::access(beside.c_str(), R_OK) != 0) {
      throw;
    }
    throw Failure(
        failure.code(), failure.what(), "names are taken from the working folder, and this one is beside the list");
  }
}

std::vector<Inference> read_list(const Flags& flags, const Signature& signature) {
  const size_t inputs = signature.inputs.size();
  std::vector<Inference> inferences;
  const std::string& list = flags.input_list_path;
  if (inputs == 0 && !flags.has("input_list_path")) {
    inferences.emplace_back();
  } else {
    const std::string text = read_text(list, "input list", ExitCode::list_missing);
    for (ListLine& line : parse_input_list(text, list, inputs == 0)) {
      if (line.files.size() != inputs) {
        throw Failure(
            ExitCode::list_bad,
            list + ":" + std::to_string(line.number) + ": expected " + std::to_string(inputs) +
                " files, one for each input of method " + signature.method + ", found " +
                std::to_string(line.files.size()),
            line.files.size() > inputs ? "quote names that have spaces: \"my input.raw\"" : "");
      }
      inferences.push_back({std::move(line.files), {}});
    }
  }
  if (inferences.empty()) {
    throw Failure(ExitCode::list_bad, "input list " + shown(list) + ": expected a line for each inference, found none");
  }
  return inferences;
}

// Gives every inference its shapes, and checks the sizes of its files.
void check_inputs(const Flags& flags, const Signature& signature, std::vector<Inference>& inferences) {
  const size_t inputs = signature.inputs.size();
  for (size_t i = 0; i < inputs; ++i) {
    const Value& value = signature.inputs[i];
    if (!value.is_tensor() && value.bytes == 0) {
      throw Failure(
          ExitCode::input_size,
          "input " + std::to_string(i) + ": expected a tensor or a number, the method takes " + value.described());
    }
  }
  const std::vector<Shape> shapes =
      read_shapes(flags.input_shape_path, "--input_shape_path", signature.inputs, inferences.size());
  for (size_t n = 0; n < inferences.size(); ++n) {
    Inference& inference = inferences[n];
    for (size_t i = 0; i < inputs; ++i) {
      const Value& value = signature.inputs[i];
      if (!shapes.empty()) {
        inference.shapes.push_back(shapes[n * inputs + i]);
      }
      const Shape& shape = inference.shape_of(i, signature);
      const std::string what = "input " + std::to_string(i) + " of inference " + std::to_string(n);
      const size_t found = size_of_input(inference.files[i], what, flags.input_list_path);
      const size_t expected = bytes_of_input(value, shape);
      if (found != expected) {
        const std::string type = value.is_tensor() ? value.type_name() + shown(shape) : value.described();
        throw Failure(
            ExitCode::input_size,
            what + " " + shown(inference.files[i]) + ": expected " + std::to_string(expected) + " bytes for " + type +
                ", found " + std::to_string(found),
            shapes.empty() && found < expected ? "give the shape by --input_shape_path if it is dynamic" : "");
      }
    }
  }
}

void check_outputs(const Flags& flags) {
  prepare_folder(flags.output_folder_path);
  const auto check = [&](const char* flag, const std::string& path) {
    if (flags.has(flag) && !path.empty()) {
      check_writable(path, std::string("--") + flag);
    }
  };
  check("etdump_path", flags.etdump_path);
  check("performance_output_path", flags.performance_output_path);
  check("metrics_path", flags.metrics_path);
  if (flags.dump_intermediate_outputs) {
    check_writable(flags.debug_output_path, "--debug_output_path");
  }
}

} // namespace

size_t bytes_of_input(const Value& value, const Shape& shape) {
  return value.is_tensor() ? bytes_of(value.type, shape) : value.bytes;
}

Plan make_plan(const Flags& flags, const Signature& signature) {
  Plan plan;
  plan.inferences = read_list(flags, signature);
  check_inputs(flags, signature, plan.inferences);
  plan.output_shapes =
      read_shapes(flags.output_shape_path, "--output_shape_path", signature.outputs, plan.inferences.size());
  check_outputs(flags);
  return plan;
}

} // namespace runner
