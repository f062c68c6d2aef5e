// Reads the part of TOML that profiles use: sections, and keys with a string, a number or true/false.
#include "profile.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

namespace gemlet::sim {
namespace {

struct Text {
    std::string value;
    bool quoted;
};

std::string trim(const std::string& s) {
    const auto first = s.find_first_not_of(" \t\r");
    if (first == std::string::npos) return "";
    return s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

Text parse_value(const std::string& raw) {
    if (!raw.empty() && raw[0] == '"') {
        const auto end = raw.find('"', 1);
        if (end == std::string::npos) throw std::runtime_error("a string without its closing quote");
        return {raw.substr(1, end - 1), true};
    }
    std::string value = trim(raw.substr(0, raw.find('#')));
    std::erase(value, '_');
    if (value == "true") value = "1";
    if (value == "false") value = "0";
    if (value.empty()) throw std::runtime_error("a key without a value");
    return {value, false};
}

double number(const Text& text) {
    char* end = nullptr;
    const double value = std::strtod(text.value.c_str(), &end);
    if (text.quoted || *end != '\0') throw std::runtime_error("'" + text.value + "' is not a number");
    return value;
}

uint64_t integer(const Text& text) {
    char* end = nullptr;
    const uint64_t value = std::strtoull(text.value.c_str(), &end, 0);
    if (text.quoted || *end != '\0') throw std::runtime_error("'" + text.value + "' is not a whole number");
    return value;
}

using Setter = std::function<void(Profile&, const Text&)>;

template <class T>
Setter whole(T Profile::* field) {
    return [field](Profile& p, const Text& t) { p.*field = static_cast<T>(integer(t)); };
}

Setter real(double Profile::* field) {
    return [field](Profile& p, const Text& t) { p.*field = number(t); };
}

const std::map<std::string, Setter>& setters() {
    static const std::map<std::string, Setter> table = [] {
        std::map<std::string, Setter> t{
            {"device.name",
             [](Profile& p, const Text& text) {
                 if (!text.quoted || text.value.size() >= sizeof p.name)
                     throw std::runtime_error("not a device name");
                 std::strncpy(p.name, text.value.c_str(), sizeof p.name - 1);
             }},
            {"device.count", whole(&Profile::devices)},
            {"device.pci_device_id", whole(&Profile::pci_device_id)},
            {"memory.capacity_bytes", whole(&Profile::capacity)},
            {"memory.reserved_bytes", whole(&Profile::reserved)},
            {"memory.context_bytes", whole(&Profile::context_bytes)},
            {"memory.granularity_bytes", whole(&Profile::granularity)},
            {"time.slice_ns", whole(&Profile::slice_ns)},
            {"time.switch_ns", whole(&Profile::switch_ns)},
            {"time.kernel_min_ns", whole(&Profile::kernel_min_ns)},
            {"time.kernel_default_ns", whole(&Profile::kernel_default_ns)},
            {"time.queue_depth", whole(&Profile::queue_depth)},
            {"time.copy_latency_ns", whole(&Profile::copy_latency_ns)},
            {"time.host_to_device_gb_per_s", real(&Profile::host_to_device_bytes_per_ns)},
            {"time.device_to_host_gb_per_s", real(&Profile::device_to_host_bytes_per_ns)},
            {"time.device_to_device_gb_per_s", real(&Profile::device_to_device_bytes_per_ns)},
            {"sensors.temperature_c", whole(&Profile::temperature_c)},
            {"sensors.power_idle_mw", whole(&Profile::power_idle_mw)},
            {"sensors.power_busy_mw", whole(&Profile::power_busy_mw)},
            {"sensors.power_limit_mw", whole(&Profile::power_limit_mw)},
            {"sensors.sm_clock_mhz", whole(&Profile::sm_clock_mhz)},
            {"sensors.sm_clock_max_mhz", whole(&Profile::sm_clock_max_mhz)},
            {"sensors.memory_clock_mhz", whole(&Profile::memory_clock_mhz)},
        };
        auto attribute = [&t](const char* upper, size_t index) {
            std::string key = "attributes.";
            for (const char* c = upper; *c != '\0'; ++c)
                key += static_cast<char>(*c | (*c >= 'A' && *c <= 'Z' ? 0x20 : 0));
            t[key] = [index](Profile& p, const Text& text) {
                p.attributes[index] = static_cast<int32_t>(integer(text));
            };
        };
#define GEMLET_SIM_ATTRIBUTE(NAME, NUMBER) attribute(#NAME, NUMBER);
#include "device_attributes.def"
#undef GEMLET_SIM_ATTRIBUTE
        return t;
    }();
    return table;
}

bool readable(const std::string& path) {
    return std::ifstream(path).good();
}

// The folder of this library is <package>/_lib/sim.
std::string package_folder() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&read_profile), &info) == 0 || info.dli_fname == nullptr) return "";
    std::string path = info.dli_fname;
    for (int levels = 0; levels < 3; ++levels) {
        const auto slash = path.rfind('/');
        if (slash == std::string::npos) return "";
        path.resize(slash);
    }
    return path;
}

void check(const Profile& p) {
    if (p.name[0] == '\0') throw std::runtime_error("device.name is missing");
    if (std::strstr(p.name, "simulated") == nullptr)
        throw std::runtime_error("device.name must say 'simulated': nobody may take it for a GPU");
    if (p.capacity == 0 || p.granularity == 0 || (p.granularity & (p.granularity - 1)) != 0)
        throw std::runtime_error("[memory] needs capacity_bytes and a power of two as granularity_bytes");
    if (p.slice_ns == 0 || p.kernel_min_ns == 0 || p.queue_depth == 0)
        throw std::runtime_error("[time] needs slice_ns, kernel_min_ns and queue_depth above 0");
    if (p.host_to_device_bytes_per_ns <= 0 || p.device_to_host_bytes_per_ns <= 0 ||
        p.device_to_device_bytes_per_ns <= 0)
        throw std::runtime_error("[time] needs the three copy rates above 0");
}

}  // namespace

Profile read_profile(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + ": cannot be read");
    Profile profile{};
    profile.devices = 1;
    std::string section;
    std::string line;
    int row = 0;
    try {
        while (std::getline(file, line)) {
            ++row;
            line = trim(line);
            if (line.empty() || line[0] == '#') continue;
            if (line[0] == '[') {
                section = trim(line.substr(1, line.find(']') - 1));
                continue;
            }
            const auto equals = line.find('=');
            if (equals == std::string::npos) throw std::runtime_error("expected key = value");
            const std::string key = section + "." + trim(line.substr(0, equals));
            const auto setter = setters().find(key);
            if (setter == setters().end()) throw std::runtime_error("unknown key " + key);
            setter->second(profile, parse_value(trim(line.substr(equals + 1))));
        }
        check(profile);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(path + ":" + std::to_string(row) + ": " + error.what());
    }
    return profile;
}

std::string profile_path(const std::string& name_or_path) {
    if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".toml")) return name_or_path;
    const std::string shipped = package_folder() + "/profiles/" + name_or_path + ".toml";
    if (readable(shipped)) return shipped;
    throw std::runtime_error("no simulated device profile '" + name_or_path + "': looked for " + shipped);
}

}  // namespace gemlet::sim
