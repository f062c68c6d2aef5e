// Failures on demand: GEMLET_SIM_FAULTS="cuMemCreate:3=2,cuMemMap:*=999,cuLaunchKernel:10=lost".
//
// Fails the n-th call (or with * every call) that this process makes of a function, with that CUresult. A name
// without its version suffix means every version. "lost", or a code with "!" after it, is sticky: from then on every
// call fails, as after a launch failure (719!) or when the device fell off the bus (lost, the same as 999!).
#pragma once

#include <atomic>
#include <cstdint>

namespace gemlet::sim {

class FaultPoint {
  public:
    explicit FaultPoint(const char* name);
    // 0, or the CUresult this call is to fail with.
    int next() { return armed_ ? next_armed() : 0; }

  private:
    int next_armed();
    const char* name_;
    bool armed_ = false;
    std::atomic<uint64_t> calls_{0};
};

// Makes `code` the error of every later call, unless there is one already.
void stick(int code);

// The error every call returns after a sticky fault; 0 without one.
int sticky_fault();

}  // namespace gemlet::sim
