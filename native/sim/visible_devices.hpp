// Which devices of the machine a program sees: CUDA_VISIBLE_DEVICES, by the driver's rules.
#pragma once

#include <cstdint>
#include <vector>

namespace gemlet::sim {

// Their indices on the machine, in the order in which the program counts them: the handle of a device (CUdevice) is
// its place among them. The variable is read once, by cuInit.
const std::vector<int>& visible_devices();

// The ordinal of the device with that index on the machine, which is also its handle; -1 if it is not shown.
int ordinal_of(uint32_t index);

}  // namespace gemlet::sim
