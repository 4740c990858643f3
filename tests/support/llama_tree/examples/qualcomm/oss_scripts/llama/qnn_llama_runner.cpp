#include <executorch/backends/qualcomm/runtime/QnnManager.h>
#include <executorch/runtime/platform.h>

#include <gflags.h>

#include <stdio.h>
#include <string.h>

// Stands for the runner of language models on the HTP.
int main(int argc, char** argv) {
  const char* prompt = gflags::value(argc, argv, "prompt", "");
  ET_LOG("reading the prompt");
  printf("%d tokens\n", executorch::qnn::add(static_cast<int>(strlen(prompt)), 1));
  return 0;
}
