// CHECK(condition): ends the test with exit code 1 and the first thing that is wrong.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                 \
    do {                                                                 \
        if (!(condition)) {                                              \
            std::printf("line %d: %s is false\n", __LINE__, #condition); \
            std::exit(1);                                                \
        }                                                                \
    } while (0)
