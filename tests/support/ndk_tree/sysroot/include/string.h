#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
int memcmp(const void*, const void*, size_t);
char* strchr(const char*, int);
int strcmp(const char*, const char*);
size_t strlen(const char*);
int strncmp(const char*, const char*, size_t);
char* strtok(char*, const char*);
#ifdef __cplusplus
}
#endif
