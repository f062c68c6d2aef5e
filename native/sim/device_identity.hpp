// Names of simulated devices: stable, and the same in the driver and in NVML.
#pragma once

#include <string>

#include "device.hpp"

namespace gemlet::sim {

void device_uuid(const Device& device, unsigned char* bytes);  // 16 of them
std::string device_uuid_text(const Device& device);            // "GPU-xxxxxxxx-xxxx-..."
unsigned pci_bus(const Device& device);
int device_with_pci(const char* text);  // -1: none
int device_with_uuid(const char* text);

}  // namespace gemlet::sim
