// Which simulated machine this process belongs to.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace gemlet::sim {

inline std::string machine_folder() {
    const char* configured = std::getenv("GEMLET_SIM_DIR");
    if (configured != nullptr && *configured != '\0') return configured;
    return "/dev/shm/gemlet-sim-" + std::to_string(getuid());
}

}  // namespace gemlet::sim
