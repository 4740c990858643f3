#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct stand_in_file FILE;
extern FILE* stderr;
#define SEEK_SET 0
#define SEEK_END 2
FILE* fopen(const char*, const char*);
int fclose(FILE*);
int fseek(FILE*, long, int);
long ftell(FILE*);
size_t fread(void*, size_t, size_t, FILE*);
size_t fwrite(const void*, size_t, size_t, FILE*);
int printf(const char*, ...);
int fprintf(FILE*, const char*, ...);
int snprintf(char*, size_t, const char*, ...);
#ifdef __cplusplus
}
#endif
