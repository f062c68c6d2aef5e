#include "machine.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "machine_folder.hpp"
#include "schedule.hpp"

namespace gemlet::sim {
namespace {

// Changes whenever the shared layout does, so that no process misreads an old file.
constexpr uint64_t kLayout = 0x67656d6c65740000ull + sizeof(SharedDevice) + sizeof(Profile);

[[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(what + ": " + std::strerror(errno));
}

uint64_t hash_bytes(const void* data, size_t size, uint64_t hash = 1469598103934665603ull) {
    for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
    return hash;
}

size_t machine_size(uint32_t devices) {
    return sizeof(SharedMachine) + devices * sizeof(SharedDevice);
}

std::string environment(const char* name, const std::string& otherwise) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : otherwise;
}

uint32_t wanted_devices(const Profile& profile) {
    const std::string text = environment("GEMLET_SIM_DEVICES", "");
    if (text.empty()) return profile.devices;
    char* end = nullptr;
    const unsigned long count = std::strtoul(text.c_str(), &end, 10);
    if (*end != '\0' || count > kMaxDevices)
        throw std::runtime_error("GEMLET_SIM_DEVICES=" + text + ": expected a number from 0 to 16");
    return static_cast<uint32_t>(count);
}

// Whether a place that `process` (pid, and the lower half of its start) took is still its own.
bool is_of(uint64_t process, uint64_t start) {
    return start == kUnknownStart || (start != 0 && (start & UINT32_MAX) == (process & UINT32_MAX));
}

class FolderLock {  // only while a machine is found or made; the kernel frees it if its holder dies
  public:
    explicit FolderLock(const std::string& folder)
        : fd_(open((folder + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
        if (fd_ < 0) fail(folder + "/lock");
        while (flock(fd_, LOCK_EX) != 0)
            if (errno != EINTR) fail(folder + "/lock");
    }
    ~FolderLock() { close(fd_); }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

  private:
    int fd_;
};

}  // namespace

Machine& Machine::get() {
    // Never destroyed: other threads may still use it while the process exits.
    static Machine* machine = new Machine(machine_folder(), /*may_write=*/true);
    return *machine;
}

Machine::Machine(const std::string& folder, bool may_write)
    : folder_(folder), pid_(static_cast<uint32_t>(getpid())), start_(process_start(pid_)) {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    chmod(folder.c_str(), 0700);
    const std::string path = folder + "/machine";
    const std::string profile_name = environment("GEMLET_SIM_PROFILE", "h200");
    FolderLock lock(folder);
    const Profile profile = read_profile(profile_path(profile_name));
    const uint32_t count = wanted_devices(profile);
    const uint64_t hash = hash_bytes(&count, sizeof count, hash_bytes(&profile, sizeof profile));
    if (!open_existing(path, hash)) create(path, profile, count, hash);
    if (may_write) claim_writer();
}

Machine::~Machine() {
    if (shared_ != nullptr) munmap(shared_, size_);
}

bool Machine::open_existing(const std::string& path, uint64_t wanted_hash) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    struct stat info{};
    fstat(fd, &info);
    size_ = static_cast<size_t>(info.st_size);
    void* mapped =
        size_ < sizeof(SharedMachine) ? MAP_FAILED : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return false;
    shared_ = static_cast<SharedMachine*>(mapped);
    const bool understood = shared_->layout.load(std::memory_order_acquire) == kLayout;
    if (understood && shared_->profile_hash == wanted_hash) return true;
    if (understood && anybody_alive()) {
        std::fprintf(stderr,
                     "gemlet-sim: %s is in use with another profile or number of devices; this program gets that "
                     "machine (set GEMLET_SIM_DIR for one of its own)\n",
                     path.c_str());
        return true;
    }
    munmap(shared_, size_);  // left over from other settings or another version
    shared_ = nullptr;
    return false;
}

void Machine::create(const std::string& path, const Profile& profile, uint32_t devices, uint64_t hash) {
    // Created under another name first, so that a process that finds the machine finds it complete.
    const std::string draft = path + ".new";
    unlink(draft.c_str());
    const int fd = open(draft.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) fail(draft);
    size_ = machine_size(devices);
    if (ftruncate(fd, static_cast<off_t>(size_)) != 0) {
        close(fd);
        fail(draft);
    }
    void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) fail(draft);
    shared_ = static_cast<SharedMachine*>(mapped);
    shared_->profile = profile;
    shared_->profile_hash = hash;
    shared_->devices = devices;
    for (uint32_t i = 0; i < devices; ++i) schedule_reset(shared_->device[i].buffers[0], monotonic_now());
    shared_->layout.store(kLayout, std::memory_order_release);
    if (rename(draft.c_str(), path.c_str()) != 0) fail(path);
}

bool Machine::anybody_alive() {
    for (auto& writer : shared_->writers) {
        const uint64_t process = writer.process.load();
        if (process == 0) continue;
        const uint64_t start = process_start(static_cast<uint32_t>(process >> 32));
        if (is_of(process, start)) return true;
    }
    return false;
}

void Machine::claim_writer() {
    const uint64_t self = static_cast<uint64_t>(pid_) << 32 | (start_ & UINT32_MAX);
    for (int attempt = 0; attempt < 2; ++attempt) {
        for (uint32_t i = 0; i < kWriters; ++i) {
            uint64_t holder = shared_->writers[i].process.load();
            if (holder != 0) {
                // Free places first; only when there are none is it worth asking who died.
                if (attempt == 0) continue;
                const uint64_t start = process_start(static_cast<uint32_t>(holder >> 32));
                if (is_of(holder, start)) continue;
            }
            if (shared_->writers[i].process.compare_exchange_strong(holder, self)) {
                writer_ = i;
                return;
            }
        }
    }
    throw std::runtime_error("the simulated machine has no place for more than 1024 processes");
}

bool Machine::alive(uint32_t pid, uint64_t start) {
    if (pid == pid_ && start == start_) return true;
    const std::lock_guard guard(liveness_mutex_);
    return liveness_.alive(pid, start);
}

}  // namespace gemlet::sim
