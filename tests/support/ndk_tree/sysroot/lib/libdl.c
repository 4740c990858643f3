#define FUNCTION(name) void name(void) {}
FUNCTION(dlopen)
FUNCTION(dlerror)
