#include <stdio.h>
#include <string.h>

int flatcc_identifier_size(void);

/* Writes the identifier of a schema as a header. */
int main(int argc, char** argv) {
  char line[256];
  if (argc != 3) {
    return 2;
  }
  FILE* in = fopen(argv[1], "r");
  FILE* out = in ? fopen(argv[2], "w") : 0;
  if (!out || !fgets(line, sizeof(line), in)) {
    perror(argv[1]);
    return 1;
  }
  char* begin = strchr(line, '"');
  char* end = begin ? strchr(begin + 1, '"') : 0;
  if (!end || end - begin - 1 != flatcc_identifier_size()) {
    return 1;
  }
  fprintf(out, "#pragma once\n#define PROGRAM_IDENTIFIER %.*s\n", (int)(end - begin + 1), begin);
  return fclose(out);
}
