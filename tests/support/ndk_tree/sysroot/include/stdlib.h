#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
void* malloc(size_t);
int atoi(const char*);
char* getenv(const char*);
__attribute__((noreturn)) void exit(int);
#ifdef __cplusplus
}
#endif
