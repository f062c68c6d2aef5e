// Whether this process is a client of NVIDIA MPS.
#pragma once

namespace gemlet::hook {

// A process becomes one with its first context if a control daemon lives in its pipe directory:
// CUDA_MPS_PIPE_DIRECTORY, by default /tmp/nvidia-mps (NVIDIA's MPS documentation, "Environment Variables"). Ask
// before that.
bool under_mps();

}  // namespace gemlet::hook
