// Failures on demand: GEMLET_SIM_FAULTS="cuMemCreate:3=2,cuMemMap:*=999,cuLaunchKernel:10=lost".
//
// Fails the n-th call (or with * every call) that this process makes of a function, with that CUresult. A name
// without its version suffix means every version. "lost", or a code with "!" after it, is sticky: from then on every
// call fails, as after a launch failure (719!) or when the device fell off the bus (lost, the same as 999!).
#pragma once

namespace gemlet::sim {

// Counts a call of the entry point `name`. 0, or the CUresult it is to fail with.
int due_fault(const char* name);

// Makes `code` the error of every later call, unless there is one already.
void stick(int code);

// The error every call returns after a sticky fault; 0 without one.
int sticky_fault();

}  // namespace gemlet::sim
