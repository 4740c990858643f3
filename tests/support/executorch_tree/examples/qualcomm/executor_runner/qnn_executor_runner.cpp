#include <executorch/backends/qualcomm/runtime/QnnManager.h>
#include <executorch/runtime/platform.h>

#include <gflags.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

struct Data {
  char* bytes;
  unsigned long size;
};

Data read(const char* path) {
  Data data{nullptr, 0};
  FILE* file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "cannot open %s\n", path);
    exit(1);
  }
  fseek(file, 0, SEEK_END);
  data.size = static_cast<unsigned long>(ftell(file));
  fseek(file, 0, SEEK_SET);
  data.bytes = static_cast<char*>(malloc(data.size + 1));
  data.size = fread(data.bytes, 1, data.size, file);
  data.bytes[data.size] = '\0';
  fclose(file);
  return data;
}

} // namespace

int main(int argc, char** argv) {
  const char* model = gflags::value(argc, argv, "model_path", "model.pte");
  const char* list = gflags::value(argc, argv, "input_list_path", "input_list.txt");
  const char* folder = gflags::value(argc, argv, "output_folder_path", "outputs");
  ET_LOG("reading the program");
  const Data program = read(model);
  Data lines = read(list);
  int index = 0;
  for (char* line = strtok(lines.bytes, "\n"); line; line = strtok(nullptr, "\n"), ++index) {
    const Data input = read(line);
    char* output = static_cast<char*>(malloc(input.size));
    const int error = qnn_execute(program.bytes, program.size, input.bytes, output, input.size);
    if (error) {
      fprintf(stderr, "Failed to execute the graph with error %d\n", error);
      return 1;
    }
    char path[1024];
    snprintf(path, sizeof(path), "%s/output_%d_0.raw", folder, index);
    FILE* file = fopen(path, "wb");
    if (!file || fwrite(output, 1, input.size, file) != input.size || fclose(file) != 0) {
      fprintf(stderr, "cannot write %s\n", path);
      return 1;
    }
  }
  printf("%d inferences\n", index);
  return 0;
}
