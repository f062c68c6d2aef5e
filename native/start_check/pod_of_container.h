// Which pod a container that is about to start belongs to. Pure.
#pragma once

#include <cctype>
#include <optional>
#include <string>
#include <string_view>

namespace gemlet {

// The "pid" of the state that a runtime gives its hooks: of the container's first process. Annotations, which a pod's
// author may have written, are deeper in the same JSON, or in strings.
inline std::optional<long> pid_of(std::string_view state) {
    int depth = 0;
    for (size_t at = 0; at < state.size(); ++at) {
        if (state[at] == '{' || state[at] == '[') ++depth;
        if (state[at] == '}' || state[at] == ']') --depth;
        if (state[at] != '"') continue;
        const size_t begin = at + 1;
        for (++at; at < state.size() && state[at] != '"'; ++at) {
            if (state[at] == '\\') ++at;
        }
        if (at >= state.size()) return std::nullopt;
        if (depth != 1 || state.substr(begin, at - begin) != "pid") continue;
        size_t next = state.find_first_not_of(" \t\r\n", at + 1);
        if (next == std::string_view::npos || state[next] != ':') continue;  // a value, not a name
        next = state.find_first_not_of(" \t\r\n", next + 1);
        long pid = 0;
        size_t digits = 0;
        while (next + digits < state.size() && std::isdigit(static_cast<unsigned char>(state[next + digits])) != 0 &&
               digits < 10) {
            pid = pid * 10 + (state[next + digits++] - '0');
        }
        return pid > 0 ? std::optional(pid) : std::nullopt;
    }
    return std::nullopt;
}

// The pod's uid in the cgroups of one of its processes (/proc/PID/cgroup). The kubelet names them:
// /kubepods/burstable/pod4be9..., or with systemd kubepods-burstable-pod4be9....slice with _ in the place of each -.
inline std::optional<std::string> pod_of(std::string_view cgroups) {
    constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    for (size_t at = cgroups.rfind("pod"); at != std::string_view::npos;
         at = at == 0 ? std::string_view::npos : cgroups.rfind("pod", at - 1)) {
        std::string uid(cgroups.substr(at + 3, kForm.size()));
        if (uid.size() != kForm.size()) continue;
        bool is_uid = true;
        for (size_t i = 0; i < uid.size(); ++i) {
            if (kForm[i] == '-') {
                is_uid = is_uid && (uid[i] == '-' || uid[i] == '_');
                uid[i] = '-';
            } else {
                is_uid = is_uid && std::isxdigit(static_cast<unsigned char>(uid[i])) != 0;
            }
        }
        if (is_uid) return uid;
    }
    return std::nullopt;
}

}  // namespace gemlet
