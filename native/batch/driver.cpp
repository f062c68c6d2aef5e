#include "driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

namespace gemlet::batch {

namespace {

Driver found;
pthread_once_t once = PTHREAD_ONCE_INIT;  // a local static would need the C++ runtime for its guard

void find() noexcept {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        found.missing = "libcuda.so.1";
        return;
    }
#define GEMBATCH_FIND(member, name, declaration)                                   \
    found.member = reinterpret_cast<decltype(found.member)>(dlsym(library, name)); \
    if (found.member == nullptr && found.missing == nullptr) found.missing = name;
    GEMBATCH_DRIVER(GEMBATCH_FIND)
#undef GEMBATCH_FIND
}

}  // namespace

const Driver& driver() noexcept {
    pthread_once(&once, find);
    return found;
}

}  // namespace gemlet::batch
