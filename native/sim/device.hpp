// One device of the machine as this process sees it: transactions on the shared state.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "machine.hpp"

namespace gemlet::sim {

// What a process needs to know of its own channel, taken in the same transaction as whatever it asked for.
struct ChannelView {
    uint64_t executed = 0;
    Channel channel{};
};

class Device {
  public:
    Device(Machine& machine, uint32_t index);

    uint32_t index() const { return index_; }
    const Profile& profile() const { return machine_.profile(); }

    // --- memory: bytes charged to this process. False: the device is full.
    bool reserve(uint64_t bytes);
    void release(uint64_t bytes);

    // --- contexts. kNone: no place for another one.
    // `share` of an MPS client's is what it may use of the device, of kWhole; 0: an ordinary context.
    uint32_t open_channel(uint32_t share = 0, bool below_normal = false);
    void abandon_work();  // of this process: what is not executed never will be
    void close_channel(uint32_t channel);

    // --- work
    uint64_t submit(uint32_t channel, uint64_t cost, uint32_t width, Nanoseconds ready, ChannelView& view);
    Nanoseconds copy(unsigned engine, uint64_t bytes, bool first, Nanoseconds ready);
    void observe(uint32_t channel, ChannelView& view);
    Nanoseconds forecast(uint32_t channel, uint64_t work);

    // --- queries. Dead processes do not count.
    uint64_t memory_in_use();
    void read(DeviceState& state);  // as of now
    uint64_t device_time(uint32_t pid);
    uint64_t memory_of(uint32_t pid);
    bool lost();
    void set_lost(bool lost);

    // Clears what dead processes left, at most every `period`.
    void reap(Nanoseconds period = 1'000'000);

  private:
    template <class Change>
    bool transact(Change&& change);
    uint64_t snapshot(DeviceState& into);
    uint32_t owner_of_this_process(DeviceState& state);
    void bury(uint32_t pid, uint64_t used);

    Machine& machine_;
    SharedDevice& shared_;
    const uint32_t index_;
    std::mutex mutex_;  // one writer of this process at a time: it has one pair of buffers
    std::unique_ptr<DeviceState> scratch_;
    Nanoseconds reaped_ = 0;
};

// The devices of this process's machine, made on first use. Throws std::runtime_error.
std::vector<std::unique_ptr<Device>>& devices();

}  // namespace gemlet::sim
