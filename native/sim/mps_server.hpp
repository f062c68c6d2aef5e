// The MPS server of the simulated machine: its clients, their limits, and what the control commands say about them.
// No sockets in here: messages in, messages out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gemlet::sim {

struct MpsClient {
    pid_t pid = 0;
    std::string command;
    std::set<std::string> devices;  // UUIDs of those it has contexts on
};

class MpsServer {
  public:
    struct Hooks {
        std::function<void(const std::string&)> log;                                  // a line of server.log
        std::function<void(uint32_t client, const std::string& message)> tell;        // to one client
        std::function<void(uint32_t client, const std::string& last_words)> hang_up;  // ends its connection
    };

    MpsServer(pid_t pid, std::string folder, Hooks hooks);

    // --- clients, known by a number that the caller gives them
    std::string admit(uint32_t id, MpsClient client, const std::string& folder);  // the answer
    void hear(uint32_t id, const std::string& message);
    void gone(uint32_t id);

    // The answer to a command, without a newline at the end of the last line.
    std::string command(const std::vector<std::string>& words);

    // The daemon is to end: no new clients.
    void close_doors() { closing_ = true; }
    void shut_down();  // now, whatever the clients do
    bool has_clients() const { return !clients_.empty(); }

  private:
    enum class State { kStopped, kActive, kFault };

    void start();
    bool is(const std::string& pid) const;
    std::string percentage_command(const std::vector<std::string>& words);
    std::string shutdown_command(const std::vector<std::string>& words);
    std::string terminate_command(const std::vector<std::string>& words);
    std::string list_processes() const;
    std::string list_devices() const;

    const pid_t pid_;
    const std::string folder_;
    const Hooks hooks_;
    State state_ = State::kStopped;
    bool closing_ = false;   // the daemon ends with the last client
    bool draining_ = false;  // the server does
    double default_percentage_ = 100, percentage_ = 100;
    int priority_ = 0;
    std::map<uint32_t, MpsClient> clients_;
    std::set<uint32_t> faulted_;  // clients that met a fatal fault and have not ended yet
};

}  // namespace gemlet::sim
