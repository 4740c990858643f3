// bare_module MODEL INPUT OUTPUT SIZE...: one float input of that shape, the first output written to a file.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

int main(int argc, char** argv) {
  if (argc < 5) {
    return 2;
  }
  std::vector<executorch::aten::SizesType> shape;
  for (int i = 4; i < argc; ++i) {
    shape.push_back(std::atoi(argv[i]));
  }
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  executorch::extension::Module module(argv[1]);
  const auto result = module.forward(executorch::extension::from_blob(bytes.data(), shape));
  if (!result.ok()) {
    return 1;
  }
  const auto& output = result->at(0).toTensor();
  std::ofstream written(argv[3], std::ios::binary);
  written.write(static_cast<const char*>(output.const_data_ptr()), static_cast<std::streamsize>(output.nbytes()));
  return written.good() ? 0 : 1;
}
