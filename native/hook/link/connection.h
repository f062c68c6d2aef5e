// The socket to the daemon. Sends from any thread; requests with an answer one at a time.
#pragma once

#include <optional>

#include "hook/link/destination.h"
#include "wire.h"

namespace gemlet::hook {

struct Attachment {
    wire::ClientPage* page;
    wire::GroupLimits* limits;
    wire::GroupLedger* ledger;
    wire::DevicePage* device;  // may be written if `latency`
    bool latency;
    uint32_t wire_index;
    uint32_t slot;
    bool tell_before;  // wire::kTellBefore
    // Null unless this process's memory on the device can move.
    wire::ResidencyPage* residency = nullptr;
};

// The group that this process is in. The daemon may have chosen another group than the requested one.
const char* joined_group();

// Connects and joins the group. False with one line on stderr (once) if that fails. `again`: that there is none is
// not worth a word. `limited`: it had limits in the group, so a daemon that does not know the group must not make one
// without any; it is asked again every two seconds.
bool connect_daemon(bool again = false, bool limited = false);
bool connected();
bool daemon_listens();     // one of any version: no more than a look
bool turned_away();        // the last daemon that was asked to govern this process has answered, and does not
bool closed_by_program();  // our socket, since we joined
void disconnect();
void forget_connection();  // in a forked child: also the lock a thread of the parent may have held

// What this process has on a device, and where it counts: in a slot of a ledger; 0: of none that has a number.
struct Held {
    uint32_t contexts = 0;
    uint64_t bytes = 0;
    uint32_t ledger = 0, slot = 0;
};

// Maps the pages of one device, where this process has something already. Without them it says why not, once.
std::optional<Attachment> attach(const unsigned char (&uuid)[16], uint32_t ordinal, const Held& held = {});

// Never blocks for long: if the daemon does not take a message within a second, the connection counts as lost.
bool send(const wire::Message& message);

}  // namespace gemlet::hook
