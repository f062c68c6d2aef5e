#include "mps_server.hpp"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "mps_pipe.hpp"

namespace gemlet::sim {
namespace {

constexpr int kServerNotReady = 807;  // CUDA_ERROR_MPS_SERVER_NOT_READY

std::string percent_text(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
}

std::string no_server(const std::string& pid) {
    return "MPS server with PID " + pid + " not found";
}

constexpr const char* kHelp =
    "get_server_list\nget_server_status PID\nstart_server -uid UID\nshutdown_server PID [-f]\nget_client_list PID\n"
    "get_device_client_list [PID]\nget_default_active_thread_percentage\nset_default_active_thread_percentage P\n"
    "get_active_thread_percentage PID\nset_active_thread_percentage PID P\nget_default_client_priority\n"
    "set_default_client_priority 0|1\nterminate_client SERVER-PID CLIENT-PID\nps [-p PID]\nquit [-t SECONDS]";

}  // namespace

MpsServer::MpsServer(pid_t pid, std::string folder, Hooks hooks)
    : pid_(pid), folder_(std::move(folder)), hooks_(std::move(hooks)) {
    const char* share = std::getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    if (share != nullptr) default_percentage_ = parse_percentage(share).value_or(100);
    const char* priority = std::getenv("CUDA_MPS_CLIENT_PRIORITY");
    if (priority != nullptr && std::string(priority) == "1") priority_ = 1;
}

void MpsServer::start() {
    if (state_ != State::kStopped) return;
    state_ = State::kActive;
    draining_ = false;
    percentage_ = default_percentage_;
    hooks_.log("Start");
    hooks_.log("Active Threads Percentage set to " + percent_text(percentage_));
}

void MpsServer::shut_down() {
    std::vector<uint32_t> all;
    for (const auto& [id, client] : clients_) all.push_back(id);
    clients_.clear();
    faulted_.clear();
    for (const uint32_t id : all) hooks_.hang_up(id, "");
    if (state_ != State::kStopped) hooks_.log("Server Exit");
    state_ = State::kStopped;
}

// --- clients -----------------------------------------------------------------------------------------------------

std::string MpsServer::admit(uint32_t id, MpsClient client, const std::string& folder) {
    if (folder != folder_) return "other";
    if (closing_ || draining_ || state_ == State::kFault) return "refused " + std::to_string(kServerNotReady);
    start();
    hooks_.log("New client " + std::to_string(client.pid) + " connected");
    clients_[id] = std::move(client);
    std::ostringstream welcome;
    welcome.precision(17);
    welcome << "welcome " << pid_ << ' ' << percentage_ << ' ' << priority_;
    return welcome.str();
}

void MpsServer::hear(uint32_t id, const std::string& message) {
    const auto known = clients_.find(id);
    if (known == clients_.end()) return;
    std::istringstream words(message);
    std::string verb, uuid, code;
    words >> verb >> uuid >> code;
    if (verb == "device") known->second.devices.insert(uuid);
    if (verb == "leave") known->second.devices.erase(uuid);
    if (verb != "fault") return;
    // One client's fault ends the contexts of all on that device; the server takes new clients when they are gone.
    state_ = State::kFault;
    hooks_.log("Client " + std::to_string(known->second.pid) + " encountered a fatal error " + code + " on " + uuid);
    for (const auto& [other, client] : clients_) {
        if (!client.devices.contains(uuid)) continue;
        faulted_.insert(other);
        if (other != id) hooks_.tell(other, message);
    }
}

void MpsServer::gone(uint32_t id) {
    const auto known = clients_.find(id);
    if (known == clients_.end()) return;
    hooks_.log("Client " + std::to_string(known->second.pid) + " disconnected");
    clients_.erase(known);
    faulted_.erase(id);
    if (state_ == State::kFault && faulted_.empty()) {
        hooks_.log("Recovered from the fatal error");
        state_ = State::kActive;
    }
    if (clients_.empty() && draining_) shut_down();
}

// --- commands ----------------------------------------------------------------------------------------------------

bool MpsServer::is(const std::string& pid) const {
    return state_ != State::kStopped && pid == std::to_string(pid_);
}

std::string MpsServer::percentage_command(const std::vector<std::string>& words) {
    const bool sets = words[0].starts_with("set_"), of_default = words[0].find("default") != std::string::npos;
    const size_t at = of_default ? 1 : 2;  // where the value is
    if (words.size() != at + (sets ? 1 : 0)) return "Invalid number of arguments for " + words[0];
    if (!of_default && !is(words[1])) return no_server(words[1]);
    double& value = of_default ? default_percentage_ : percentage_;
    if (sets) {
        const auto wanted = parse_percentage(words[at]);
        if (!wanted) return "Invalid percentage " + words[at] + ": expected a number above 0, at most 100";
        value = *wanted;
    }
    return percent_text(value);
}

std::string MpsServer::shutdown_command(const std::vector<std::string>& words) {
    if (words.size() < 2) return "Usage: shutdown_server PID [-f]";
    if (!is(words[1])) return no_server(words[1]);
    draining_ = true;
    if (clients_.empty() || (words.size() > 2 && words[2] == "-f")) shut_down();
    return "";
}

std::string MpsServer::terminate_command(const std::vector<std::string>& words) {
    if (words.size() != 3) return "Usage: terminate_client SERVER-PID CLIENT-PID";
    if (!is(words[1])) return no_server(words[1]);
    for (const auto& [id, client] : clients_) {
        if (words[2] != std::to_string(client.pid)) continue;
        const uint32_t ended = id;
        gone(ended);
        hooks_.hang_up(ended, "terminate");
        return "";
    }
    return "MPS client with PID " + words[2] + " not found";
}

std::string MpsServer::list_processes() const {
    std::string text;
    char line[512];
    std::snprintf(line, sizeof line, "%-9s %-5s %-9s %-17s %-11s %s", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE",
                  "COMMAND");
    text = line;
    for (const auto& [id, client] : clients_)
        for (const std::string& device : client.devices) {
            std::snprintf(line, sizeof line, "\n%-9d %-5u %-9d %-17.16s %-11d %s", client.pid, id, pid_,
                          device.c_str(), client.pid, client.command.c_str());
            text += line;
        }
    return text;
}

std::string MpsServer::list_devices() const {
    std::map<std::string, std::string> by_device;
    for (const auto& [id, client] : clients_)
        for (const std::string& device : client.devices) by_device[device] += "\n" + std::to_string(client.pid);
    std::string text;
    for (const auto& [device, pids] : by_device) text += (text.empty() ? "Device " : "\nDevice ") + device + pids;
    return text;
}

std::string MpsServer::command(const std::vector<std::string>& words) {
    const std::string& verb = words[0];
    if (verb == "get_server_list") return state_ == State::kStopped ? "" : std::to_string(pid_);
    if (verb == "ps") return words.size() == 3 && !is(words[2]) ? no_server(words[2]) : list_processes();
    if (verb == "get_device_client_list")
        return words.size() == 2 && !is(words[1]) ? no_server(words[1]) : list_devices();
    if (verb.ends_with("active_thread_percentage") && (verb.starts_with("get_") || verb.starts_with("set_")))
        return percentage_command(words);
    if (verb == "shutdown_server") return shutdown_command(words);
    if (verb == "terminate_client") return terminate_command(words);
    if (verb == "get_default_client_priority") return std::to_string(priority_);
    if (verb == "set_default_client_priority") {
        if (words.size() != 2 || (words[1] != "0" && words[1] != "1"))
            return "Usage: set_default_client_priority 0|1";
        priority_ = words[1] == "1" ? 1 : 0;
        return words[1];
    }
    if (verb == "start_server") {
        if (words.size() != 3 || words[1] != "-uid") return "Usage: start_server -uid UID";
        start();
        return "";
    }
    if (verb == "get_server_status" || verb == "get_client_list") {
        if (words.size() != 2) return "Usage: " + verb + " PID";
        if (!is(words[1])) return no_server(words[1]);
        if (verb == "get_server_status") return state_ == State::kFault ? "FAULT" : "ACTIVE";
        std::string text;
        for (const auto& [id, client] : clients_) text += (text.empty() ? "" : "\n") + std::to_string(client.pid);
        return text;
    }
    if (verb == "help") return kHelp;
    return "Unknown command " + verb + " (the simulated nvidia-cuda-mps-control knows: help)";
}

}  // namespace gemlet::sim
