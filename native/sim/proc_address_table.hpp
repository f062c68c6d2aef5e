// Which exported symbol cuGetProcAddress gives for a name, from which CUDA version on. Sorted by name.
#pragma once

namespace gemlet::sim {

struct ProcRow {
    const char* name;
    int flag;  // 1: legacy default stream, 2: per-thread default stream, where that differs
    int version;
    void* symbol;
};

extern const ProcRow kProcRows[];
extern const unsigned kProcRowCount;

}  // namespace gemlet::sim
