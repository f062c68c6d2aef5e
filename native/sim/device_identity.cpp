#include "device_identity.hpp"

#include <strings.h>

#include <cstdio>
#include <cstring>

namespace gemlet::sim {

void device_uuid(const Device& device, unsigned char* bytes) {
    // From what the device is, so that the same machine made anew has the same devices.
    uint64_t hash = 1469598103934665603ull ^ device.index();
    for (int i = 0; i < 16; ++i) {
        for (const char* c = device.profile().name; *c != '\0'; ++c)
            hash = (hash ^ static_cast<unsigned char>(*c)) * 1099511628211ull;
        hash = (hash ^ device.index()) * 1099511628211ull;
        bytes[i] = static_cast<unsigned char>(hash >> 32);
    }
}

std::string device_uuid_text(const Device& device) {
    unsigned char b[16];
    device_uuid(device, b);
    char text[64];
    std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                  b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return text;
}

unsigned pci_bus(const Device& device) {
    return 0x10 + device.index();
}

int device_with_pci(const char* text) {
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 &&
        (domain = 0, std::sscanf(text, "%x:%x.%x", &bus, &slot, &function)) < 2)
        return -1;
    for (const auto& device : devices())
        if (domain == 0 && slot == 0 && function == 0 && pci_bus(*device) == bus)
            return static_cast<int>(device->index());
    return -1;
}

int device_with_uuid(const char* text) {
    for (const auto& device : devices())
        if (strcasecmp(text, device_uuid_text(*device).c_str()) == 0) return static_cast<int>(device->index());
    return -1;
}

}  // namespace gemlet::sim
