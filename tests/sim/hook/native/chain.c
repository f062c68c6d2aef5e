// Wraps base_value() the way interposers do: dlsym(RTLD_NEXT) from its own code. If somebody calls dlsym on its
// behalf from another library, "next" becomes next to that library, possibly this one again: endless recursion.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

void base_value(char* text, unsigned long size) {
    static int depth;
    void (*next)(char*, unsigned long) = (void (*)(char*, unsigned long))dlsym(RTLD_NEXT, "base_value");
    char inner[128] = "nothing";
    if (depth++ > 8)
        snprintf(inner, sizeof inner, "recursion");
    else if (next)
        next(inner, sizeof inner);
    snprintf(text, size, "%s>%s", NAME, inner);
}
