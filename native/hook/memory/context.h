// Which contexts this process has.
#pragma once

namespace gemlet::hook {

// True once cuInit succeeded in this process.
bool cuda_started();

}  // namespace gemlet::hook
