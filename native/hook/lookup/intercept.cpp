// Every way in which a program looks up a driver function. One rule holds for all of them: call the real lookup
// first, and if it found a function of the driver, return ours in its place. So the driver, not the hook, decides
// which variant a name, a version and the stream flags mean, and a function that the driver lacks stays absent.
//
//   ELF link          we are preloaded, so our exported symbol comes first
//   dlsym, dlvsym     below; the entry points are in tail_call.cpp
//   cuGetProcAddress  below; cudaGetDriverEntryPoint goes through it
#include "hook/lookup/intercept.h"
#include "hook/lookup/nvml_lookup.h"

#include <dlfcn.h>
#include <string_view>

namespace gemlet::hook {

namespace {

using Dlsym = void* (*)(void*, const char*);
using Dlvsym = void* (*)(void*, const char*, const char*);

// A lookup of our own, which must see us as its caller. Otherwise the compiler may make it a sibling call, and the
// lookup would see the program, which jumped to us.
void* from_here(void* found) {
    asm volatile("" : "+r"(found));
    return found;
}

bool is_hooked(const char* name) {
    if (!name) return false;
    if (name[0] == 'c' && name[1] == 'u') return hooked_symbol(name).has_value();
    return name[0] == 'n' && name[1] == 'v' && is_nvml_hook(name);
}

// What the program gets for a successful lookup. `again` repeats the lookup behind this library, so that its failure
// leaves the right dlerror().
template <class Again>
void* answer(void* found, const char* name, Again&& again) {
    if (!found) return nullptr;
    auto symbol = hooked_symbol(name);
    if (!symbol) return answer_nvml(found, name, again);
    if (found ==
        hook_of(*symbol)) {  // a lookup in the global scope met us first: is there a driver behind us at all?
        if (driver_found() && real_address(*symbol)) return found;
        return again();
    }
    return driver_found(found) ? redirect(found) : found;
}

// RTLD_DEFAULT would find our own symbol; what counts is whether there is one behind us. A driver only the caller's
// own libraries can see (loaded RTLD_LOCAL) is not found that way, but then it is loaded.
template <class Again>
void* answer_default(const char* name, Again&& behind) {
    if (void* found = behind()) return answer(found, name, behind);
    auto symbol = hooked_symbol(name);
    if (!symbol || !driver_found() || !real_address(*symbol)) return behind();  // once more, for its dlerror()
    dlerror();
    return hook_of(*symbol);
}

void* redirecting_dlsym(void* handle, const char* name) {
    auto next = reinterpret_cast<Dlsym>(next_dlsym());
    auto behind = [=] { return from_here(next(RTLD_NEXT, name)); };
    return handle == RTLD_DEFAULT ? answer_default(name, behind) : answer(next(handle, name), name, behind);
}

void* redirecting_dlvsym(void* handle, const char* name, const char* version) {
    auto next = reinterpret_cast<Dlvsym>(next_dlvsym());
    auto behind = [=] { return from_here(next(RTLD_NEXT, name, version)); };
    return handle == RTLD_DEFAULT ? answer_default(name, behind) : answer(next(handle, name, version), name, behind);
}

}  // namespace

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

// The function that dlsym and dlvsym jump to. With RTLD_NEXT, another interposer asks for the definition after its
// own, which is never ours.
[[gnu::visibility("hidden")]] void* gemlet_choose_dlsym(void* handle, const char* name) {
    bool plain = handle == RTLD_NEXT || !is_hooked(name);
    return plain ? next_dlsym() : reinterpret_cast<void*>(&redirecting_dlsym);
}

[[gnu::visibility("hidden")]] void* gemlet_choose_dlvsym(void* handle, const char* name, const char*) {
    bool plain = handle == RTLD_NEXT || !is_hooked(name);
    return plain ? next_dlvsym() : reinterpret_cast<void*>(&redirecting_dlvsym);
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
    check_lookup();
    CUresult result = real::cuGetProcAddress(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && function) *function = redirect(*function);
    return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    check_lookup();
    CUresult result = real::cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && function) *function = redirect(*function);
    return result;
}

}  // extern "C"
