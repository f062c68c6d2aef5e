#include "faults.hpp"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "mps_session.hpp"

namespace gemlet::sim {
namespace {

struct Fault {
    std::string function;
    uint64_t call;  // 0: every one
    int code;
    bool sticky;
    std::atomic<uint64_t> calls{0};
};

std::atomic<int> stuck{0};

bool parse(const std::string& text, Fault& fault) {
    const auto colon = text.find(':');
    const auto equals = text.find('=', colon == std::string::npos ? 0 : colon);
    if (colon == std::string::npos || equals == std::string::npos) return false;
    fault.function = text.substr(0, colon);
    const std::string call = text.substr(colon + 1, equals - colon - 1);
    std::string code = text.substr(equals + 1);
    if (code == "lost") code = "999!";
    fault.sticky = code.ends_with('!');
    if (fault.sticky) code.pop_back();
    char* end = nullptr;
    fault.call = call == "*" ? 0 : std::strtoull(call.c_str(), &end, 10);
    if (call != "*" && (*end != '\0' || fault.call == 0)) return false;
    fault.code = static_cast<int>(std::strtol(code.c_str(), &end, 10));
    return !code.empty() && *end == '\0' && fault.code > 0;
}

std::deque<Fault>& faults() {
    static auto* all = [] {
        auto* list = new std::deque<Fault>;
        const char* setting = std::getenv("GEMLET_SIM_FAULTS");
        std::string rest = setting != nullptr ? setting : "";
        while (!rest.empty()) {
            const auto comma = rest.find(',');
            const std::string one = rest.substr(0, comma);
            rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
            if (parse(one, list->emplace_back())) continue;
            list->pop_back();
            std::fprintf(stderr, "gemlet-sim: GEMLET_SIM_FAULTS: '%s' is not FUNCTION:CALL=CODE, ignored\n",
                         one.c_str());
        }
        return list;
    }();
    return *all;
}

bool is_version_suffix(const std::string& text) {
    return text.size() >= 3 && text[0] == '_' && text[1] == 'v' &&
           text.find_first_not_of("0123456789", 2) == std::string::npos;
}

bool means(const Fault& fault, const std::string& function) {
    return function == fault.function ||
           (function.starts_with(fault.function) && is_version_suffix(function.substr(fault.function.size())));
}

}  // namespace

int due_fault(const char* name) {
    static const bool armed = !faults().empty();
    if (!armed) return 0;
    const Fault* due = nullptr;
    for (Fault& fault : faults()) {
        if (!means(fault, name)) continue;
        const uint64_t call = fault.calls.fetch_add(1) + 1;
        if (due == nullptr && (fault.call == 0 || fault.call == call)) due = &fault;
    }
    if (due == nullptr) return 0;
    if (due->sticky) {
        stick(due->code);
        mps_report_fault(due->code);
    }
    return due->code;
}

void stick(int code) {
    int none = 0;
    stuck.compare_exchange_strong(none, code);
}

int sticky_fault() {
    return stuck.load(std::memory_order_relaxed);
}

}  // namespace gemlet::sim
