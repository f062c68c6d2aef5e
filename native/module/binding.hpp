// What the two halves of the Python module share.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <type_traits>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

// Keyword arguments named as the fields of Parameters; throws std::invalid_argument for any other.
Parameters parameters_from(const nanobind::kwargs& given);

// The enumerator of that name; throws std::invalid_argument. The second argument only chooses the enumeration.
Priority enum_from(const std::string& name, Priority);
Workload enum_from(const std::string& name, Workload);
Gang enum_from(const std::string& name, Gang);

// Moves the keyword argument `name`, if there is one, from `given` to `field`.
template <typename T>
void take(nanobind::kwargs& given, const char* name, T& field) {
    if (!given.contains(name)) return;
    if constexpr (std::is_enum_v<T>) {
        field = enum_from(nanobind::cast<std::string>(given[name]), T{});
    } else if (!nanobind::try_cast<T>(given[name], field)) {
        throw nanobind::type_error((std::string(name) + " has a value of the wrong type").c_str());
    }
    nanobind::del(given[name]);
}

// The fields of a group from keyword arguments named as they are; `given` keeps what is not among them.
GroupSpec spec_from(const std::string& name, nanobind::kwargs& given);
void no_others(const nanobind::kwargs& given);  // throws std::invalid_argument if any is left

inline const char* name_of(Priority priority) {
    return kPriorityNames[static_cast<size_t>(priority)];
}
inline const char* name_of(Workload workload) {
    return kWorkloadNames[static_cast<size_t>(workload)];
}
inline const char* name_of(Gang gang) {
    return kGangNames[static_cast<size_t>(gang)];
}
template <typename T>
nanobind::object to_python(const T& value) {
    if constexpr (std::is_enum_v<T>) {
        return nanobind::cast(name_of(value));
    } else {
        return nanobind::cast(value);
    }
}

}  // namespace gemlet::arbiter
