// The class Arbiter for Python. Times are nanoseconds of whatever clock the caller keeps.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "arbiter/arbiter.hpp"
#include "arbiter/gangs.hpp"
#include "arbiter/policies/gemini_predictor.hpp"
#include "module/binding.hpp"
#include "module/names.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gemlet::arbiter;

namespace {

constexpr const char* kPredictorModes[] = {"p90", "max"};

template <typename Enum, size_t N>
Enum from_name(const char* const (&names)[N], const std::string& name, const char* what) {
    for (size_t i = 0; i < N; ++i) {
        if (name == names[i]) return static_cast<Enum>(i);
    }
    throw std::invalid_argument(std::string(what) + " '" + name + "' is unknown");
}

template <typename T>
bool read(const std::string& key, const nb::handle& value, const char* name, T& field) {
    if (key != name) return false;
    field = nb::cast<T>(value);
    return true;
}

GroupId set_group(Arbiter& self, const std::string& name, Nanoseconds now, nb::kwargs fields) {
    const GroupSpec spec = spec_from(name, fields);
    no_others(fields);
    return self.set_group(spec, now);
}

nb::list take_actions(Arbiter& self) {
    nb::list result;
    for (const Action& a : self.take_actions()) {
        result.append(nb::make_tuple(kActionKinds[static_cast<size_t>(a.kind)], a.client, a.deadline, a.window,
                                     a.idle, a.idle_most, a.poll, a.submissions, a.shared, a.raise));
    }
    return result;
}

nb::list usage(const Arbiter& self, Nanoseconds now) {
    nb::list result;
    for (const GroupUsage& u : self.usage(now)) {
        nb::dict row;
        row["id"] = u.id;
        row["name"] = u.spec.name;
#define PUT(field) row[#field] = to_python(u.spec.field);
        GEMLET_SPEC_FIELDS(PUT)
#undef PUT
        row["target"] = u.target;
        row["used"] = u.used;
        row["clients"] = u.clients;
        row["waiting"] = u.waiting;
        row["holding"] = u.holding;
        row["reason"] = u.reason;
        row["throttled"] = u.throttled;
        row["speed"] = u.speed < 0.0 ? nb::none() : nb::cast(u.speed);
        row["exclusive"] = u.why != Why::kShares;
        row["why"] = kWhyNames[static_cast<size_t>(u.why)];
        result.append(row);
    }
    return result;
}

}  // namespace

namespace gemlet::arbiter {

Workload enum_from(const std::string& name, Workload) {
    return from_name<Workload>(kWorkloadNames, name, "workload");
}

Priority enum_from(const std::string& name, Priority) {
    return from_name<Priority>(kPriorityNames, name, "priority");
}

Gang enum_from(const std::string& name, Gang) {
    return from_name<Gang>(kGangNames, name, "gang");
}

GroupSpec spec_from(const std::string& name, nb::kwargs& given) {
    GroupSpec spec;
    spec.name = name;
#define TAKE(field) take(given, #field, spec.field);
    GEMLET_SPEC_FIELDS(TAKE)
#undef TAKE
    return spec;
}

void no_others(const nb::kwargs& given) {
    for (const auto& [name, value] : given)
        throw std::invalid_argument("a group has no field '" + nb::cast<std::string>(name) + "'");
}

Parameters parameters_from(const nb::kwargs& given) {
    Parameters p;
    for (const auto& [handle, value] : given) {
        const std::string key = nb::cast<std::string>(handle);
        const bool known =
            read(key, value, "switch_cost", p.switch_cost) || read(key, value, "switch_loss", p.switch_loss) ||
            read(key, value, "switch_cost_mps", p.switch_cost_mps) ||
            read(key, value, "interrupt_loss", p.interrupt_loss) || read(key, value, "cycle_min", p.cycle_min) ||
            read(key, value, "cycle_max", p.cycle_max) || read(key, value, "quantum_min", p.quantum_min) ||
            read(key, value, "cap_block", p.cap_block) || read(key, value, "grace", p.grace) ||
            read(key, value, "latency_quiet", p.latency_quiet) || read(key, value, "expect_early", p.expect_early) ||
            read(key, value, "hardware_turn", p.hardware_turn) || read(key, value, "debt_max", p.debt_max) ||
            read(key, value, "window_latency", p.window_latency) ||
            read(key, value, "window_shared", p.window_shared) || read(key, value, "window_alone", p.window_alone) ||
            read(key, value, "quiet", p.quiet) || read(key, value, "open", p.open) ||
            read(key, value, "observe", p.observe) || read(key, value, "lag", p.lag) ||
            read(key, value, "lag_latency", p.lag_latency) || read(key, value, "backoff_min", p.backoff_min) ||
            read(key, value, "backoff_max", p.backoff_max) || read(key, value, "poll_alone", p.poll_alone) ||
            read(key, value, "poll_shared", p.poll_shared) || read(key, value, "poll_requests", p.poll_requests) ||
            read(key, value, "poll_contended", p.poll_contended) || read(key, value, "idle_alone", p.idle_alone) ||
            read(key, value, "idle_contended", p.idle_contended) || read(key, value, "idle_most", p.idle_most) ||
            read(key, value, "slack", p.slack) || read(key, value, "finish", p.finish) ||
            read(key, value, "gemini_base_quota", p.gemini_base_quota) ||
            read(key, value, "gemini_min_quota", p.gemini_min_quota) ||
            read(key, value, "gemini_window", p.gemini_window);
        if (!known) throw std::invalid_argument("no parameter '" + key + "'");
    }
    return p;
}

}  // namespace gemlet::arbiter

void bind_arbiter(nb::module_& m) {
    m.attr("NEVER") = kNever;
    nb::class_<Arbiter>(m, "Arbiter")
        .def(
            "__init__",
            [](Arbiter* self, const std::string& policy, const nb::kwargs& parameters) {
                new (self) Arbiter(policy, parameters_from(parameters));
            },
            "policy"_a, "parameters"_a)
        .def("set_group", set_group, "name"_a, "now"_a, "fields"_a)
        .def("remove_group", &Arbiter::remove_group, "group"_a, "now"_a)
        .def("add_client", &Arbiter::add_client, "client"_a, "group"_a, "now"_a, nb::kw_only(), "mps"_a = false)
        .def("remove_client", &Arbiter::remove_client, "client"_a, "now"_a)
        .def("request", &Arbiter::request, "client"_a, "now"_a)
        .def("took", &Arbiter::took, "client"_a, "now"_a)
        .def(
            "stopped",
            [](Arbiter& self, ClientId client, const std::string& reason, Nanoseconds tail, Nanoseconds now,
               bool unused) {
                self.stopped(client, from_name<StopReason>(kStopReasons, reason, "reason"), tail, now, unused);
            },
            "client"_a, "reason"_a, "tail"_a, "now"_a, nb::kw_only(), "unused"_a = false)
        .def("drained", &Arbiter::drained, "client"_a, "at"_a, "now"_a, nb::kw_only(), "earlier"_a = false)
        .def(
            "progress",
            [](Arbiter& self, ClientId client, Nanoseconds work, uint64_t launches, uint64_t samples, uint64_t busy,
               uint64_t awaited) { self.progress(client, {work, launches, samples, busy, awaited}); },
            "client"_a, "work"_a, "launches"_a = 0, "samples"_a = 0, "busy"_a = 0, "awaited"_a = 0)
        .def("next_event", &Arbiter::next_event)
        .def("tick", &Arbiter::tick, "now"_a)
        .def("take_actions", take_actions)
        .def("usage", usage, "now"_a)
        .def_prop_ro("ignored", &Arbiter::ignored);
    nb::class_<Gangs>(m, "Gangs")
        .def(
            "__init__",
            [](Gangs* self, const nb::kwargs& parameters) { new (self) Gangs(parameters_from(parameters)); },
            "parameters"_a)
        .def("add", &Gangs::add, "device"_a, nb::keep_alive<1, 2>())
        .def("remove", &Gangs::remove, "device"_a)
        .def("tie", &Gangs::tie, "group"_a, "tied"_a = true)
        .def("settle", &Gangs::settle, "now"_a)
        .def("next_event", &Gangs::next_event)
        .def("is_gang", &Gangs::is_gang, "group"_a);
    m.def(
        "timetable",
        [](const std::vector<std::tuple<std::vector<size_t>, double, double, bool>>& wishes,
           const std::vector<Nanoseconds>& free_from, Nanoseconds cycle, Nanoseconds shortest) {
            std::vector<Wish> given;
            for (const auto& [devices, share, least, may_grow] : wishes)
                given.push_back({.devices = devices, .share = share, .least = least, .may_grow = may_grow});
            for (const Wish& wish : given)
                for (const size_t device : wish.devices)
                    if (device >= free_from.size()) throw std::invalid_argument("a wish names an unknown device");
            std::vector<std::tuple<size_t, Nanoseconds, Nanoseconds>> slots;
            for (const Slot& slot : timetable(given, free_from, cycle, shortest))
                slots.emplace_back(slot.wish, slot.from, slot.until);
            return slots;
        },
        "wishes"_a, "free_from"_a, "cycle"_a, "shortest"_a);
    nb::class_<GeminiPredictor>(m, "GeminiPredictor")
        .def(
            "__init__",
            [](GeminiPredictor* self, Nanoseconds merge_threshold, Nanoseconds keep, const std::string& mode) {
                new (self) GeminiPredictor(merge_threshold, keep,
                                           from_name<GeminiPredictor::Mode>(kPredictorModes, mode, "mode"));
            },
            "merge_threshold"_a, nb::kw_only(), "keep"_a = 3'000'000'000, "mode"_a = "p90")
        .def("record_start", &GeminiPredictor::record_start, "now"_a)
        .def("record_stop", &GeminiPredictor::record_stop, "now"_a)
        .def("interrupt", &GeminiPredictor::interrupt)
        .def("reset", &GeminiPredictor::reset)
        .def("predict_plain", &GeminiPredictor::predict_plain, "now"_a)
        .def("predict_merged", &GeminiPredictor::predict_merged, "now"_a);
}
