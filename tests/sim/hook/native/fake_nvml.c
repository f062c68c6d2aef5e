// The few NVML calls the hook makes or redirects: one device of 80 GiB.
#include <string.h>

typedef struct {
    unsigned long long total, free, used;
} memory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

int nvmlInit_v2(void) {
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    static int token;
    *device = &token;
    return index == 0 ? 0 : 2;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
    strncpy(text, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, memory_t* m) {
    m->total = 80ull << 30, m->used = 1ull << 30, m->free = 79ull << 30;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, memory_v2_t* m) {
    m->total = 80ull << 30, m->reserved = 1ull << 29, m->used = 1ull << 29, m->free = 79ull << 30;
    return 0;
}
