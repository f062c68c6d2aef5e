// Our dlmopen. Nothing is preloaded into a namespace of the loader's but the first, so a driver there would be beyond
// every hook: the driver is opened in the first in its place, and where nothing may pass nothing else is opened.
//
// Our dlopen. What is opened with RTLD_DEEPBIND, as Julia opens its libraries, finds names in what it brings along
// before it finds them in what is preloaded: dlsym in libc, functions of the driver in the driver. That would be past
// every hook, too, so a program of a group opens such a library without it.
#include <dlfcn.h>
#include <link.h>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "hook/link/connection.h"
#include "hook/link/say.h"
#include "hook/lookup/loaded_objects.h"

namespace gemlet::hook {

namespace {

using Dlmopen = void* (*)(Lmid_t, const char*, int);

void* next_dlmopen() {
    static constinit std::atomic<void*> cache{nullptr};
    return cached_definition(cache, "dlmopen");
}

bool is_driver(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return std::strncmp(slash ? slash + 1 : path, "libcuda.so", 10) == 0;
}

bool has_driver(void* handle) {
    link_map* object = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0 || !object) return false;
    while (object->l_prev) object = object->l_prev;
    for (; object; object = object->l_next)
        if (is_driver(object->l_name)) return true;
    return false;
}

void* open_elsewhere(Lmid_t space, const char* file, int flags) {
    if (is_driver(file)) return dlopen(file, flags);
    constexpr auto kWhy = "%s in a namespace of its own, where the hook is not: %s";
    if (destination().strict) {
        say_once(Topic::kLookup, kWhy, file, "it is not opened (--strict)");
        return nullptr;
    }
    void* handle = reinterpret_cast<Dlmopen>(next_dlmopen())(space, file, flags);
    if (handle && has_driver(handle)) say_once(Topic::kLookup, kWhy, file, consequence());
    return handle;
}

// `flags`: as they lie in a register.
void bind_to_hooks(uint64_t& flags) {
    if (flags & RTLD_DEEPBIND && is_started_in_group()) flags &= ~uint64_t{RTLD_DEEPBIND};
}

}  // namespace

}  // namespace gemlet::hook

// Where dlmopen (tail_call.cpp) jumps to. `arguments`: as they will be put back.
extern "C" [[gnu::visibility("hidden")]] void* gemlet_choose_dlmopen(Lmid_t space, const char* file, int,
                                                                     uint64_t* arguments) {
    using namespace gemlet::hook;
    bind_to_hooks(arguments[2]);
    const bool plain = space == LM_ID_BASE || !file || !destination().socket[0];
    return plain ? next_dlmopen() : reinterpret_cast<void*>(&open_elsewhere);
}

// Where dlopen jumps to.
extern "C" [[gnu::visibility("hidden")]] void* gemlet_choose_dlopen(const char*, int, void*, uint64_t* arguments) {
    using namespace gemlet::hook;
    static constinit std::atomic<void*> cache{nullptr};
    bind_to_hooks(arguments[1]);
    return cached_definition(cache, "dlopen");
}
