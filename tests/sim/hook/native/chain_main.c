#include <stdio.h>

void base_value(char* text, unsigned long size);

int main(void) {
    char text[160];
    base_value(text, sizeof text);
    puts(text);
    return 0;
}
