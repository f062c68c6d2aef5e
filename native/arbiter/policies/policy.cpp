#include "arbiter/policies/policy.hpp"

#include <stdexcept>

namespace gemlet::arbiter {
namespace {

constexpr struct {
    const char* name;
    std::unique_ptr<Policy> (*make)(const Parameters&);
} kPolicies[] = {
    {"fair", make_fair},
    {"gemini", make_gemini},
    {"fifo", make_fifo},
};

}  // namespace

std::unique_ptr<Policy> make_policy(const std::string& name, const Parameters& parameters) {
    std::string known;
    for (const auto& policy : kPolicies) {
        if (name == policy.name) return policy.make(parameters);
        known += known.empty() ? "" : ", ";
        known += policy.name;
    }
    throw std::invalid_argument("no policy '" + name + "'; there are: " + known);
}

}  // namespace gemlet::arbiter
