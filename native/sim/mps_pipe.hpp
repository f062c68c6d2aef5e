// The pipe directory of the simulated MPS: where its daemon listens, and the messages that pass there.
//
// There are two sockets with one protocol: `control`, which other tools look for, and `simulated`, by which our own
// programs know that the daemon is this stand-in: they never speak to NVIDIA's.
//
// A message is one line of words. From nvidia-cuda-mps-control: a command, answered by one message. From a client:
//
//   client FOLDER       it uses the machine in FOLDER. Answers: `welcome SERVER-PID PERCENTAGE PRIORITY`,
//                       `refused CURESULT`, or `other` (a machine that this daemon does not serve)
//   device UUID         it made its first context there
//   leave UUID          ... and destroyed its last one
//   fault UUID CURESULT its kernel broke the device's context, which all clients share
//
// and to a client: `fault UUID CURESULT` from another one, and `terminate`. The connection ends with the server.
#pragma once

#include <optional>
#include <string>

namespace gemlet::sim {

inline constexpr const char* kMpsControl = "control";
inline constexpr const char* kMpsMarker = "simulated";
inline constexpr const char* kMpsPid = "nvidia-cuda-mps-control.pid";

// $CUDA_MPS_PIPE_DIRECTORY, or NVIDIA's default.
std::string mps_pipe_directory();

// The folder of a machine by the one name that all its processes agree on.
std::string canonical_folder(const std::string& folder);

// A file descriptor that closes itself.
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor() { reset(); }
    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int release();
    void reset();

  private:
    int fd_ = -1;
};

// Listens on, or connects to, a socket in `directory`, however long its path is. Invalid (errno) if it cannot be.
Descriptor mps_listen(const std::string& directory, const char* name);
Descriptor mps_connect(const std::string& directory, const char* name);

bool mps_send(int fd, const std::string& message);
// Nothing at the end of the connection; with `wait` false also when no message is there (errno EAGAIN).
std::optional<std::string> mps_receive(int fd, bool wait = true);

// A percentage of threads as CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and the commands take it: above 0, at most 100.
std::optional<double> parse_percentage(const std::string& text);

}  // namespace gemlet::sim
