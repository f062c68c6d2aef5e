// Modules and libraries: code. Only the driver knows what of an image it puts on the device, and with lazy loading it
// puts the rest there later. The daemon accounts for it; here a group that has nothing left gets none.
#include "hook/lookup/driver.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/submit/current_context.h"

using namespace gemlet::hook;

namespace {

template <class Call>
CUresult load(Call&& call) {
    Reentry reentry;
    if (reentry.nested() || room_for_unknown(current_device())) return call();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    return load([=] { return real::cuModuleLoad(module, path); });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return load([=] { return real::cuModuleLoadData(module, image); });
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                            void** values) {
    return load([=] { return real::cuModuleLoadDataEx(module, image, count, options, values); });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return load([=] { return real::cuModuleLoadFatBinary(module, image); });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values,
                           unsigned int jit_count, CUlibraryOption* options, void** values, unsigned int count) {
    return load(
        [=] { return real::cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count); });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit, void** jit_values,
                               unsigned int jit_count, CUlibraryOption* options, void** values, unsigned int count) {
    return load([=] {
        return real::cuLibraryLoadFromFile(library, path, jit, jit_values, jit_count, options, values, count);
    });
}

}  // extern "C"
