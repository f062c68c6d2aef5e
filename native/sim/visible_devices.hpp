// Which devices of the machine a program sees: CUDA_VISIBLE_DEVICES, by the driver's rules.
#pragma once

#include <vector>

namespace gemlet::sim {

// Their indices on the machine, in the order in which the program counts them. The variable is read once, by cuInit.
// The handle of a device is its index on the machine; that of a device that is not shown is not valid.
const std::vector<int>& visible_devices();
bool is_visible(int index);

}  // namespace gemlet::sim
