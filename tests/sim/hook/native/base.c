#include <stdio.h>

void base_value(char* text, unsigned long size) {
    snprintf(text, size, "base");
}
