// The plan of a run, checked before the model is loaded.
#pragma once

#include <string>
#include <vector>

#include "flags.h"
#include "program.h"

namespace runner {

struct Inference {
  std::vector<std::string> files;
  // One for each input, or none: then the method's own shapes are used.
  std::vector<Shape> shapes;

  const Shape& shape_of(size_t input, const Signature& signature) const {
    return shapes.empty() ? signature.inputs[input].shape : shapes[input];
  }
};

struct Plan {
  std::vector<Inference> inferences;
  // How much of each output of each inference to write, in order; empty: all of it.
  std::vector<Shape> output_shapes;
};

// Reads the list and the shapes, and checks every input file and the output folder. Throws Failure.
Plan make_plan(const Flags& flags, const Signature& signature);

// Bytes that an input of this shape has in its file.
size_t bytes_of_input(const Value& value, const Shape& shape);

} // namespace runner
