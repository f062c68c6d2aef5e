#include "hook/swap/admission.h"

#include "hook/link/say.h"
#include "hook/memory/limit_hint.h"

namespace gemlet::hook {

void explain_refusal(SwapSpace& space, wire::Admission why, uint64_t bytes) {
    constexpr double gib = 1 << 30;
    constexpr uint64_t kContexts = 1ull << 30;  // what those of a program or two take: room for them, too
    const double wanted = double(space.movable + bytes) / gib;
    const double ceiling = double(space.page.load()->ceiling.load(std::memory_order_relaxed)) / gib;
    switch (why) {
        case wire::Admission::kGranted:
            return;
        case wire::Admission::kResident:
            return say_once(Topic::kMemory,
                            "group '%s' may have %.2f GiB on GPU %d at a time, not counting contexts, and this "
                            "process alone wants %.2f GiB\n"
                            "  hint: %s",
                            joined_group(), ceiling, space.device.ordinal, wanted,
                            LimitHint("--resident", space.movable + bytes + kContexts).text);
        case wire::Admission::kCapacity:
            return say_once(Topic::kMemory,
                            "this process wants %.2f GiB on GPU %d, and no more than %.2f GiB of its capacity are "
                            "left for what can move\n  hint: raise `capacity` of the device in the configuration",
                            wanted, space.device.ordinal, ceiling);
        case wire::Admission::kHost:
            return say_once(Topic::kMemory,
                            "the host has no room for what would have to leave GPU %d if this process had %.2f GiB\n"
                            "  hint: raise `host_memory` in the configuration of the daemon, or run fewer programs",
                            space.device.ordinal, wanted);
    }
}

void tell_less(SwapSpace& space) {
    space.publish();
    if (space.managed()) space.tell(wire::MessageType::kAdmit, space.movable);
}

}  // namespace gemlet::hook
