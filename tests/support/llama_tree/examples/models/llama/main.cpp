#include <executorch/runtime/platform.h>

#include <gflags.h>

#include <stdio.h>

const char* answer(const char* prompt);

// Stands for the runner of language models on any backend.
int main(int argc, char** argv) {
  ET_LOG("reading the prompt");
  printf("%s\n", answer(gflags::value(argc, argv, "prompt", "")));
  return 0;
}
