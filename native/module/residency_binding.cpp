// The class Residency for Python: virtual time, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "arbiter/residency/residency.hpp"
#include "module/names.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gemlet::arbiter;

namespace {

nb::list take_orders(Residency& self) {
    nb::list list;
    for (const Order& o : self.take_orders()) list.append(nb::make_tuple(o.client, o.allowed, o.number));
    return list;
}

nb::list usage(const Residency& self, Nanoseconds now) {
    nb::list list;
    for (const ResidencyUsage& u : self.usage(now)) {
        nb::dict d;
        d["client"] = u.client;
        d["movable"] = u.movable;
        d["mapped"] = u.mapped;
        d["allowed"] = u.allowed;
        d["resident"] = u.resident;
        d["queued"] = u.queued;
        d["host"] = u.host;
        d["epoch_end"] = u.epoch_end;
        d["last_handover"] = u.last_handover;
        d["reason"] = u.reason;
        list.append(d);
    }
    return list;
}

constexpr ResidencyParameters kDefault;

void init(Residency* self, std::optional<uint64_t> capacity, std::optional<uint64_t> host, double overhead,
          Nanoseconds epoch_min, Nanoseconds max_wait, Nanoseconds idle) {
    if (!(overhead > 0 && overhead < 1)) throw std::invalid_argument("overhead must be in (0, 1)");
    ResidencyParameters p;
    p.overhead = overhead;
    p.epoch_min = epoch_min;
    p.max_wait = max_wait;
    p.idle = idle;
    new (self) Residency(p);
    self->set_capacity(capacity.value_or(kUnlimited), 0);
    self->set_host(host.value_or(kUnlimited));
}

}  // namespace

void bind_residency(nb::module_& m) {
    nb::class_<Residency>(m, "Residency")
        .def("__init__", init, nb::kw_only(), "capacity"_a = nb::none(), "host"_a = nb::none(),
             "overhead"_a = kDefault.overhead, "epoch_min"_a = kDefault.epoch_min, "max_wait"_a = kDefault.max_wait,
             "idle"_a = kDefault.idle)
        .def(
            "set_capacity",
            [](Residency& self, std::optional<uint64_t> bytes, Nanoseconds now) {
                self.set_capacity(bytes.value_or(kUnlimited), now);
            },
            "bytes"_a, "now"_a)
        .def(
            "set_group",
            [](Residency& self, GroupId group, std::optional<uint64_t> resident, double share, Nanoseconds now,
               bool pinned) { self.set_group(group, resident.value_or(kUnlimited), share, now, pinned); },
            "group"_a, "resident"_a, "share"_a, "now"_a, "pinned"_a = false)
        .def("add", &Residency::add, "client"_a, "group"_a, "now"_a)
        .def("remove", &Residency::remove, "client"_a, "now"_a)
        .def("leave", &Residency::leave, "client"_a, "now"_a)
        .def(
            "admit",
            [](Residency& self, ClientId client, uint64_t bytes, Nanoseconds now) {
                return kRefusals[static_cast<size_t>(self.admit(client, bytes, now))];
            },
            "client"_a, "bytes"_a, "now"_a)
        .def("adopt", &Residency::adopt, "client"_a, "bytes"_a, "mapped"_a, "now"_a)
        .def("expect", &Residency::expect, "client"_a, "group"_a, "fixed"_a, "movable"_a, "mapped"_a, "now"_a)
        .def("come_back", &Residency::come_back, "before"_a, "client"_a, "group"_a, "now"_a)
        .def("set_fixed", &Residency::set_fixed, "client"_a, "bytes"_a, "now"_a)
        .def("report", nb::overload_cast<ClientId, uint64_t, uint32_t, bool, Nanoseconds>(&Residency::report),
             "client"_a, "mapped"_a, "seen"_a, "complete"_a, "now"_a)
        .def("request", &Residency::request, "client"_a, "now"_a)
        .def("idle", &Residency::idle, "client"_a, "now"_a)
        .def("resident", &Residency::resident, "client"_a)
        .def("fits_fixed", &Residency::fits_fixed, "client"_a, "bytes"_a)
        .def("fits_if_it_stays", &Residency::fits_if_it_stays, "client"_a, "bytes"_a)
        .def("within", &Residency::within, "client"_a)
        .def("held", &Residency::held)
        .def("host_promised", &Residency::host_promised)
        .def("next_event", &Residency::next_event)
        .def("tick", &Residency::tick, "now"_a)
        .def("take_orders", take_orders)
        .def("usage", usage, "now"_a);
}
