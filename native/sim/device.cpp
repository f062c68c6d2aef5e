#include "device.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "schedule.hpp"

namespace gemlet::sim {
namespace {

constexpr Nanoseconds kCommitAfter = 20'000'000;  // readers save what they played out when it is this much

// The source may be rewritten while we copy; then the version says so and the copy is thrown away. Word-wise atomic
// reads keep that a torn copy and not undefined behaviour.
void copy_words(void* to, const void* from, size_t bytes) {
    auto* target = static_cast<uint64_t*>(to);
    auto* source = static_cast<uint64_t*>(const_cast<void*>(from));
    for (size_t i = 0; i < bytes / 8; ++i)
        __atomic_store_n(target + i, __atomic_load_n(source + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

static_assert(offsetof(DeviceState, owners) % 8 == 0 && sizeof(Owner) % 8 == 0 && sizeof(Channel) % 8 == 0);

}  // namespace

Device::Device(Machine& machine, uint32_t index)
    : machine_(machine), shared_(machine.device(index)), index_(index), scratch_(std::make_unique<DeviceState>()) {}

uint64_t Device::snapshot(DeviceState& into) {
    for (;;) {
        const uint64_t version = shared_.published.load(std::memory_order_acquire);
        const DeviceState& source = shared_.buffers[(version & 0xffff) % (2 * kWriters)];
        copy_words(&into, &source, offsetof(DeviceState, owners));
        const uint32_t owners = std::min(into.owners_used, kOwners);
        const uint32_t channels = std::min(into.channels_used, kChannels);
        copy_words(into.owners, source.owners, owners * sizeof(Owner));
        copy_words(into.channels, source.channels, channels * sizeof(Channel));
        std::atomic_thread_fence(std::memory_order_acquire);
        if (shared_.published.load(std::memory_order_relaxed) == version) return version;
    }
}

// `change` edits the state as of now and says whether to keep it. The caller holds mutex_.
template <class Change>
bool Device::transact(Change&& change) {
    for (;;) {
        const uint64_t seen = shared_.published.load(std::memory_order_acquire);
        const uint64_t mine = 2 * machine_.writer() + ((seen & 0xffff) == 2 * machine_.writer() ? 1 : 0);
        DeviceState& draft = shared_.buffers[mine];
        uint64_t version = snapshot(draft);
        if ((version & 0xffff) == mine) continue;  // cannot be: only this thread publishes it
        const Nanoseconds now = monotonic_now();
        schedule_advance(draft, profile(), now);
        if (!change(draft, now)) return false;
        const uint64_t next = ((version >> 16) + 1) << 16 | mine;
        if (shared_.published.compare_exchange_strong(version, next, std::memory_order_acq_rel)) return true;
    }
}

uint32_t Device::owner_of_this_process(DeviceState& s) {
    uint32_t free = kNone;
    for (uint32_t i = 0; i < kOwners; ++i) {
        if (i < s.owners_used && s.owners[i].pid == machine_.pid() && s.owners[i].start == machine_.start()) return i;
        if (free == kNone && (i >= s.owners_used || s.owners[i].pid == 0)) free = i;
    }
    if (free == kNone) return kNone;
    s.owners[free] = Owner{};
    s.owners[free].pid = machine_.pid();
    s.owners[free].start = machine_.start();
    s.owners_used = std::max(s.owners_used, free + 1);
    return free;
}

bool Device::reserve(uint64_t bytes) {
    for (int attempt = 0; attempt < 2; ++attempt) {
        reap(attempt == 0 ? 1'000'000 : 0);  // before saying no, be sure that no dead process has it
        const std::lock_guard guard(mutex_);
        const bool fits = transact([&](DeviceState& s, Nanoseconds) {
            const uint32_t self = owner_of_this_process(s);
            if (self == kNone) return false;
            uint64_t used = 0;
            for (uint32_t i = 0; i < s.owners_used; ++i) used += s.owners[i].memory;
            if (bytes > profile().capacity || used > profile().capacity - bytes) return false;
            s.owners[self].memory += bytes;
            s.most_memory = std::max(s.most_memory, used + bytes);
            return true;
        });
        if (fits) return true;
    }
    return false;
}

void Device::release(uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds) {
        const uint32_t self = owner_of_this_process(s);
        if (self == kNone) return false;
        s.owners[self].memory -= std::min(bytes, s.owners[self].memory);
        return true;
    });
}

uint32_t Device::open_channel(uint32_t share, bool below_normal) {
    reap(0);
    uint32_t channel = kNone;
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds) {
        channel = kNone;
        const uint32_t self = owner_of_this_process(s);
        if (self == kNone) return false;
        for (uint32_t i = 0; i < kChannels && channel == kNone; ++i)
            if (i >= s.channels_used || s.channels[i].owner == 0) channel = i;
        if (channel == kNone) return false;
        s.channels[channel] = Channel{};
        s.channels[channel].owner = self + 1;
        s.channels[channel].share = share;
        s.channels[channel].below_normal = below_normal ? 1 : 0;
        s.channels_used = std::max(s.channels_used, channel + 1);
        return true;
    });
    return channel;
}

void Device::close_channel(uint32_t channel) {
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds) {
        schedule_drop_channel(s, channel);
        return true;
    });
}

void Device::abandon_work() {
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds) {
        const uint32_t self = owner_of_this_process(s);
        if (self == kNone) return false;
        for (uint32_t i = 0; i < s.channels_used; ++i)
            if (s.channels[i].owner == self + 1) schedule_abandon(s, i);
        return true;
    });
}

uint64_t Device::submit(uint32_t channel, uint64_t cost, uint32_t width, Nanoseconds ready, ChannelView& view) {
    reap();
    uint64_t end = 0;
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds now) {
        end = schedule_submit(s, profile(), channel, cost, width, ready, now);
        view.channel = s.channels[channel];
        return true;
    });
    view.executed = view.channel.executed;
    return end;
}

Nanoseconds Device::copy(unsigned engine, uint64_t bytes, bool first, Nanoseconds ready) {
    Nanoseconds finish = 0;
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds) {
        finish = schedule_copy(s, profile(), engine, bytes, first, ready);
        return true;
    });
    return finish;
}

void Device::observe(uint32_t channel, ChannelView& view) {
    reap();
    const std::lock_guard guard(mutex_);
    snapshot(*scratch_);
    const Nanoseconds now = monotonic_now();
    if (now > scratch_->time + kCommitAfter) transact([](DeviceState&, Nanoseconds) { return true; });
    schedule_advance(*scratch_, profile(), now);
    view.channel = scratch_->channels[channel];
    view.executed = view.channel.executed;
}

Nanoseconds Device::forecast(uint32_t channel, uint64_t work) {
    const std::lock_guard guard(mutex_);
    snapshot(*scratch_);
    schedule_advance(*scratch_, profile(), monotonic_now());
    return schedule_forecast(*scratch_, profile(), channel, work);
}

void Device::read(DeviceState& state) {
    snapshot(state);
    schedule_advance(state, profile(), monotonic_now());
}

uint64_t Device::memory_in_use() {
    const std::lock_guard guard(mutex_);
    snapshot(*scratch_);
    uint64_t used = 0;
    for (uint32_t i = 0; i < scratch_->owners_used; ++i) {
        const Owner& owner = scratch_->owners[i];
        if (owner.memory > 0 && machine_.alive(owner.pid, owner.start)) used += owner.memory;
    }
    return used;
}

uint64_t Device::memory_of(uint32_t pid) {
    const std::lock_guard guard(mutex_);
    snapshot(*scratch_);
    for (uint32_t i = 0; i < scratch_->owners_used; ++i) {
        const Owner& owner = scratch_->owners[i];
        if (owner.pid == pid && machine_.alive(owner.pid, owner.start)) return owner.memory;
    }
    return 0;
}

uint64_t Device::device_time(uint32_t pid) {
    const std::lock_guard guard(mutex_);
    read(*scratch_);
    for (uint32_t i = 0; i < scratch_->owners_used; ++i)
        if (scratch_->owners[i].pid == pid) return schedule_used(*scratch_, i);
    const uint64_t dug = shared_.graves_dug.load();
    for (uint64_t i = dug; i-- > (dug > kGraves ? dug - kGraves : 0);)
        if (shared_.graves[i % kGraves].pid.load() == pid) return shared_.graves[i % kGraves].used.load();
    return 0;
}

bool Device::lost() {
    const std::lock_guard guard(mutex_);
    snapshot(*scratch_);
    return scratch_->lost != 0;
}

void Device::set_lost(bool lost) {
    const std::lock_guard guard(mutex_);
    transact([&](DeviceState& s, Nanoseconds) {
        s.lost = lost ? 1 : 0;
        return true;
    });
}

void Device::reap(Nanoseconds period) {
    const std::lock_guard guard(mutex_);
    const Nanoseconds now = monotonic_now();
    if (period > 0 && now < reaped_ + period) return;
    reaped_ = now;
    snapshot(*scratch_);
    for (uint32_t i = 0; i < scratch_->owners_used; ++i) {
        const Owner dead = scratch_->owners[i];
        if (dead.pid == 0 || machine_.alive(dead.pid, dead.start)) continue;
        uint64_t used = 0;
        const bool mine = transact([&](DeviceState& s, Nanoseconds) {
            if (s.owners[i].pid != dead.pid || s.owners[i].start != dead.start) return false;
            for (uint32_t c = 0; c < kChannels && c < s.channels_used; ++c)
                if (s.channels[c].owner == i + 1) schedule_drop_channel(s, c);
            used = s.owners[i].retired;
            s.owners[i] = Owner{};
            while (s.owners_used > 0 && s.owners[s.owners_used - 1].pid == 0) --s.owners_used;
            return true;
        });
        if (mine) bury(dead.pid, used);
    }
}

void Device::bury(uint32_t pid, uint64_t used) {
    Grave& grave = shared_.graves[shared_.graves_dug.fetch_add(1) % kGraves];
    grave.used.store(used);
    grave.pid.store(pid);
}

std::vector<std::unique_ptr<Device>>& devices() {
    static auto* all = [] {
        auto* made = new std::vector<std::unique_ptr<Device>>;  // never destroyed, like the machine
        Machine& machine = Machine::get();
        for (uint32_t i = 0; i < machine.devices(); ++i) made->push_back(std::make_unique<Device>(machine, i));
        return made;
    }();
    return *all;
}

}  // namespace gemlet::sim
