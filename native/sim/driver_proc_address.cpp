// cuGetProcAddress, answering as driver 580 does for every name, version and flag.
#include <algorithm>
#include <cstring>

#include "api.hpp"
#include "proc_address_table.hpp"

using namespace gemlet::sim;

namespace {

struct Found {
    void* symbol = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};

Found find(const char* name, int version, cuuint64_t flags) {
    Found found;
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const ProcRow* end = kProcRows + kProcRowCount;
    const auto first = std::lower_bound(kProcRows, end, name, [](const ProcRow& row, const char* wanted) {
        return std::strcmp(row.name, wanted) < 0;
    });
    bool has_per_thread = false;
    for (const ProcRow* row = first; row != end && std::strcmp(row->name, name) == 0; ++row)
        has_per_thread = has_per_thread || row->flag == 2;
    for (const ProcRow* row = first; row != end && std::strcmp(row->name, name) == 0; ++row) {
        if (row->flag != (per_thread && has_per_thread ? 2 : 1)) continue;
        if (found.symbol == nullptr) found.status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (row->version > version) continue;
        found = {row->symbol, CU_GET_PROC_ADDRESS_SUCCESS};
    }
    return found;
}

// A program built for a later CUDA 13 asks with its own version; another major release is nonsense to this driver.
bool sensible(int version) {
    return version >= 1000 && version < 14000;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** symbol, int version, cuuint64_t flags) {
    return api(
        __func__,
        [&]() -> CUresult {
            check(name != nullptr && symbol != nullptr && sensible(version) && flags <= 2);
            const Found found = find(name, version, flags);
            *symbol = found.symbol;
            return found.symbol != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
        },
        Needs::kNothing);
}

CUresult cuGetProcAddress_v2(const char* name, void** symbol, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    return api(
        __func__,
        [&] {
            check(name != nullptr && symbol != nullptr && sensible(version) && flags <= 2);
            const Found found = find(name, version, flags);
            *symbol = found.symbol;
            if (status != nullptr) *status = found.status;
        },
        Needs::kNothing);
}

}  // extern "C"
