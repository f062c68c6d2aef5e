// The _ptds and _ptsz entry points: the plain ones with stream 0 meaning the per-thread default stream.
#include "api.hpp"

#define GEMLET_SIM_PER_THREAD(NAME, PLAIN, PARAMETERS, ARGUMENTS) \
    extern "C" CUresult NAME PARAMETERS {                         \
        const gemlet::sim::PerThreadDefaultStream scope;          \
        return PLAIN ARGUMENTS;                                   \
    }
#include "exports.inc"
