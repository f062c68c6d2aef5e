// The simulated machine: one file in $GEMLET_SIM_DIR that every process maps. There is no server; a process that
// looks at a device first advances it to the present.
//
// Nobody ever holds a lock on it. A process changes a device by copying its state into a buffer of its own, changing
// the copy and publishing the buffer with one compare-exchange. So a process that is killed or stopped at any
// instruction has either changed everything or nothing, and keeps nobody waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "device_state.hpp"
#include "liveness.hpp"
#include "profile.hpp"

namespace gemlet::sim {

inline constexpr uint32_t kWriters = 1024;  // processes of one machine
inline constexpr uint32_t kMaxDevices = 16;
inline constexpr uint32_t kGraves = 256;

// What a dead process had used; only for checks of the accounting afterwards.
struct Grave {
    std::atomic<uint64_t> pid, used;
};

struct SharedDevice {
    std::atomic<uint64_t> published;  // version << 16 | buffer
    std::atomic<uint64_t> graves_dug;
    Grave graves[kGraves];
    DeviceState buffers[2 * kWriters];  // two of each writer, so that one is never the published one
};

struct SharedMachine {
    std::atomic<uint64_t> layout;  // says which layout this is; written last
    uint64_t profile_hash;
    uint32_t devices;
    uint32_t reserved;
    Profile profile;
    struct Writer {
        std::atomic<uint64_t> process;  // pid << 32 | low half of its start time; 0: free
    } writers[kWriters];
    SharedDevice device[];
};

class Machine {
  public:
    // Finds the machine of this environment or creates it. Throws std::runtime_error.
    static Machine& get();

    explicit Machine(const std::string& folder, bool may_write);
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    uint32_t devices() const { return shared_->devices; }
    const Profile& profile() const { return shared_->profile; }
    SharedDevice& device(uint32_t index) { return shared_->device[index]; }
    uint32_t writer() const { return writer_; }
    uint32_t pid() const { return pid_; }
    uint64_t start() const { return start_; }
    bool alive(uint32_t pid, uint64_t start);
    const std::string& folder() const { return folder_; }

  private:
    bool open_existing(const std::string& path, uint64_t wanted_hash);
    void create(const std::string& path, const Profile& profile, uint32_t devices, uint64_t hash);
    bool anybody_alive();
    void claim_writer();

    std::string folder_;
    SharedMachine* shared_ = nullptr;
    size_t size_ = 0;
    uint32_t writer_ = kNone;
    uint32_t pid_;
    uint64_t start_;
    std::mutex liveness_mutex_;
    Liveness liveness_;
};

}  // namespace gemlet::sim
