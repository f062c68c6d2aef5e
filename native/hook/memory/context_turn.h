// While nobody knows what a context takes on a device, the members of a group with a memory limit make theirs one at
// a time, each after the one before is accounted for. Otherwise all that start at once would find the group empty.
#pragma once

#include <cstdint>

#include "hook/lookup/cuda_api.h"
#include "wire.h"

namespace gemlet::hook {

class ContextTurn {
  public:
    // Waits for the daemon if a strict program has none, and while another member has the turn, until it is this
    // one's or is needed no more. One that keeps it for 5 s (stopped, or dead without a daemon that frees it) loses
    // it: the room that it took in the ledger still counts.
    explicit ContextTurn(CUdevice device);
    ~ContextTurn();
    bool taken() const { return ledger_ != nullptr; }
    ContextTurn(const ContextTurn&) = delete;
    ContextTurn& operator=(const ContextTurn&) = delete;

  private:
    wire::GroupLedger* ledger_ = nullptr;  // null: none was needed
    uint32_t mine_ = 0;
};

}  // namespace gemlet::hook
