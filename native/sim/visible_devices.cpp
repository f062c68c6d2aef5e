#include "visible_devices.hpp"

#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "device_identity.hpp"

namespace gemlet::sim {
namespace {

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string::npos) return "";
    return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// -1: none, or for the beginning of a UUID several.
int named(const std::string& name) {
    const int count = static_cast<int>(devices().size());
    if (!name.empty() && name.size() < 4 && name.find_first_not_of("0123456789") == std::string::npos) {
        const int index = std::stoi(name);
        return index < count ? index : -1;
    }
    if (name.rfind("GPU-", 0) != 0) return -1;
    int found = -1;
    for (int index = 0; index < count; ++index) {
        const std::string uuid = device_uuid_text(*devices()[static_cast<size_t>(index)]);
        if (strncasecmp(uuid.c_str(), name.c_str(), name.size()) != 0) continue;
        if (found >= 0) return -1;
        found = index;
    }
    return found;
}

std::vector<int> chosen() {
    std::vector<int> shown;
    const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (list == nullptr) {
        for (size_t index = 0; index < devices().size(); ++index) shown.push_back(static_cast<int>(index));
        return shown;
    }
    const std::string text = list;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        const int index = named(trimmed(text.substr(begin, end - begin)));
        if (index < 0) break;  // the rest is ignored
        if (std::find(shown.begin(), shown.end(), index) != shown.end()) return {};
        shown.push_back(index);
        begin = end + 1;
    }
    return shown;
}

}  // namespace

const std::vector<int>& visible_devices() {
    static const auto* shown = new std::vector<int>(chosen());  // outlives what runs at the process's end
    return *shown;
}

int ordinal_of(uint32_t index) {
    const auto& shown = visible_devices();
    const auto found = std::find(shown.begin(), shown.end(), static_cast<int>(index));
    return found == shown.end() ? -1 : static_cast<int>(found - shown.begin());
}

}  // namespace gemlet::sim
