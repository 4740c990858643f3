#include <executorch/runtime/platform.h>

#include <gflags.h>

#include <stdio.h>

// Stands for the runner of language models on any backend.
int main(int argc, char** argv) {
  ET_LOG("reading the prompt");
  printf("%s\n", gflags::value(argc, argv, "prompt", ""));
  return 0;
}
