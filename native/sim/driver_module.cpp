// Modules, libraries, and the functions in them.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "addresses.hpp"
#include "allocations.hpp"
#include "capture.hpp"
#include "handles.hpp"

namespace gemlet::sim {
namespace {

std::string read_file(const char* path) {
    check(path != nullptr);
    std::ifstream file(path, std::ios::binary);
    check(file.good(), CUDA_ERROR_FILE_NOT_FOUND);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

CUmodule load_module(CUcontext context, Image image) {
    CUmodule module = HandlePool<CUmod_st>::make();
    module->context = context;
    module->image = std::move(image);
    module->functions.clear();
    module->globals.clear();
    created(module, Tag::kModule);
    for (const auto& [name, bytes] : module->image.globals) module->globals[name] = allocate_device(context, bytes);
    return module;
}

void unload_module(CUmodule module) {
    for (const auto& [name, address] : module->globals) free_device(address);
    for (const auto& [name, function] : module->functions) HandlePool<CUfunc_st>::drop(function);
    HandlePool<CUmod_st>::drop(module);
}

Launchable& launchable(CUfunction function) {
    check(function != nullptr && (function->tag == Tag::kFunction || function->tag == Tag::kKernel),
          CUDA_ERROR_INVALID_HANDLE);
    return *function;
}

}  // namespace gemlet::sim

using namespace gemlet::sim;

namespace {

CUmodule checked(CUmodule module) {
    return checked_handle(module, Tag::kModule);
}
CUlibrary checked(CUlibrary library) {
    return checked_handle(library, Tag::kLibrary);
}
CUkernel checked(CUkernel kernel) {
    return checked_handle(kernel, Tag::kKernel);
}

CUfunction function_in(CUmodule module, const char* name) {
    check(name != nullptr);
    const auto entry = module->image.entries.find(name);
    check(entry != module->image.entries.end(), CUDA_ERROR_NOT_FOUND);
    const std::lock_guard guard(module->mutex);
    CUfunction& function = module->functions[name];
    if (function == nullptr) {
        function = HandlePool<CUfunc_st>::make();
        function->entry = entry->second;
        function->module = module;
        std::memset(function->attributes, 0, sizeof function->attributes);
        created(function, Tag::kFunction);
    }
    return function;
}

CUmodule module_of(CUlibrary library, CUcontext context) {
    const std::lock_guard guard(library->mutex);
    CUmodule& module = library->modules[context];
    if (module == nullptr || module->tag != Tag::kModule) module = load_module(context, library->image);
    return module;
}

CUresult load(const char* name, CUmodule* module, const void* image, uint64_t size) {
    return api(name, [&] {
        check(module != nullptr && image != nullptr);
        CUcontext context = owner_of(require_context());
        forbid_during_capture();
        *module = load_module(context, read_image(image, size));
    });
}

CUlibrary make_library(Image image) {
    CUlibrary library = HandlePool<CUlib_st>::make();
    library->image = std::move(image);
    library->kernels.clear();
    library->modules.clear();
    created(library, Tag::kLibrary);
    for (const auto& [name, entry] : library->image.entries) {
        CUkernel kernel = HandlePool<CUkern_st>::make();
        kernel->entry = entry;
        kernel->library = library;
        std::memset(kernel->attributes, 0, sizeof kernel->attributes);
        library->kernels[name] = created(kernel, Tag::kKernel);
    }
    return library;
}

void global_in(CUmodule module, CUdeviceptr* address, size_t* bytes, const char* name) {
    check(name != nullptr);
    const auto found = module->globals.find(name);
    check(found != module->globals.end(), CUDA_ERROR_NOT_FOUND);
    if (address != nullptr) *address = found->second;
    if (bytes != nullptr) *bytes = module->image.globals.at(name);
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    return api(__func__, [&] {
        check(module != nullptr);
        CUcontext context = owner_of(require_context());
        forbid_during_capture();
        const std::string file = read_file(path);
        *module = load_module(context, read_image(file.data(), file.size()));
    });
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return load(__func__, module, image, 0);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    return load(__func__, module, image, 0);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return load(__func__, module, image, 0);
}

CUresult cuModuleUnload(CUmodule module) {
    return api(__func__, [&] {
        checked(module);
        require_context();
        unload_module(module);
    });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    return api(__func__, [&] {
        check(mode != nullptr);
        *mode = CU_MODULE_LAZY_LOADING;
    });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return api(__func__, [&] {
        check(function != nullptr);
        *function = function_in(checked(module), name);
    });
}

CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
    return api(__func__, [&] {
        check(count != nullptr);
        *count = static_cast<unsigned>(checked(module)->image.entries.size());
    });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
    return api(__func__, [&] {
        check(functions != nullptr);
        unsigned i = 0;
        for (const auto& [name, entry] : checked(module)->image.entries)
            if (i < count) functions[i++] = function_in(module, name.c_str());
    });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
    return api(__func__, [&] { global_in(checked(module), address, bytes, name); });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
    return api(__func__, [&] {
        check(library != nullptr && code != nullptr);
        *library = make_library(read_image(code, 0));
    });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned,
                               CUlibraryOption*, void**, unsigned) {
    return api(__func__, [&] {
        check(library != nullptr);
        const std::string file = read_file(path);
        *library = make_library(read_image(file.data(), file.size()));
    });
}

CUresult cuLibraryUnload(CUlibrary library) {
    return api(__func__, [&] {
        checked(library);
        for (const auto& [context, module] : library->modules)
            if (module->tag == Tag::kModule) unload_module(module);
        for (const auto& [name, kernel] : library->kernels) HandlePool<CUkern_st>::drop(kernel);
        HandlePool<CUlib_st>::drop(library);
    });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    return api(__func__, [&] {
        check(kernel != nullptr && name != nullptr);
        const auto found = checked(library)->kernels.find(name);
        check(found != library->kernels.end(), CUDA_ERROR_NOT_FOUND);
        *kernel = found->second;
    });
}

CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
    return api(__func__, [&] {
        check(count != nullptr);
        *count = static_cast<unsigned>(checked(library)->kernels.size());
    });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
    return api(__func__, [&] {
        check(kernels != nullptr);
        unsigned i = 0;
        for (const auto& [name, kernel] : checked(library)->kernels)
            if (i < count) kernels[i++] = kernel;
    });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    return api(__func__, [&] {
        check(module != nullptr);
        *module = module_of(checked(library), owner_of(require_context()));
    });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
    return api(__func__,
               [&] { global_in(module_of(checked(library), owner_of(require_context())), address, bytes, name); });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    return api(__func__, [&] {
        check(function != nullptr);
        CUmodule module = module_of(checked(kernel)->library, owner_of(require_context()));
        *function = function_in(module, kernel->entry->name.c_str());
    });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
    return api(__func__, [&] {
        check(library != nullptr);
        *library = checked(kernel)->library;
    });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
    return api(__func__, [&] {
        check(name != nullptr);
        *name = checked(kernel)->entry->name.c_str();
    });
}

}  // extern "C"
