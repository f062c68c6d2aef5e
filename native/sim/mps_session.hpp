// This process as a client of the simulated MPS, if a daemon of its machine runs where CUDA looks for one.
#pragma once

#include <cstdint>

#include "cuda_api.h"
#include "device.hpp"

namespace gemlet::sim {

// What a context of this process may use of a device.
struct MpsShare {
    int multiprocessors;
    uint32_t parts;  // of kWhole; 0: this process is not a client
    bool below_normal;
};

// Looks for the daemon, once; called by cuInit. Not CUDA_SUCCESS: there is one and it takes no clients now.
CUresult mps_connect();
bool mps_client();

// For a new context that asks for this many multiprocessors (0: for all it may have).
MpsShare mps_share(const Device& device, unsigned wanted = 0);

void mps_context_opened(const Device& device);
void mps_context_closed(const Device& device);

// The error that ends this process's work: its own sticky fault, or what the server had to say. 0: none.
int mps_trouble();

// A kernel of this process broke the context that all clients on its devices share.
void mps_report_fault(int code);

}  // namespace gemlet::sim
