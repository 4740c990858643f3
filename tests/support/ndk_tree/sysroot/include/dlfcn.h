#pragma once
#ifdef __cplusplus
extern "C" {
#endif
#define RTLD_NOW 2
void* dlopen(const char*, int);
char* dlerror(void);
#ifdef __cplusplus
}
#endif
