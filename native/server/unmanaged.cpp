#include "server/unmanaged.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace gemlet::server {

void UnmanagedList::put(Unmanaged entry) {
    if (entry.pid <= 0) return;  // nobody could say when it has ended
    for (Unmanaged& known : entries_) {
        if (known.pid != entry.pid || (entry.started != 0 && known.started != entry.started)) continue;
        entry.since = known.since;
        entry.started = known.started;
        known = std::move(entry);
        return;
    }
    forget(entry.pid);
    if (entries_.size() >= kMost) {
        std::unordered_map<uid_t, size_t> count;
        for (const Unmanaged& known : entries_) ++count[known.account];
        const auto most = std::max_element(count.begin(), count.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        entries_.erase(std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Unmanaged& known) { return known.account == most->first; }));
    }
    entries_.push_back(std::move(entry));
}

void UnmanagedList::forget(pid_t pid) {
    std::erase_if(entries_, [&](const Unmanaged& known) { return known.pid == pid; });
}

bool UnmanagedList::has(pid_t pid) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Unmanaged& known) { return known.pid == pid; });
}

void UnmanagedList::looked_at(pid_t pid, uint64_t started) {
    std::erase_if(entries_, [&](Unmanaged& known) {
        if (known.pid != pid) return false;
        if (known.started == 0) known.started = started;
        return started == 0 || known.started != started;
    });
}

}  // namespace gemlet::server
