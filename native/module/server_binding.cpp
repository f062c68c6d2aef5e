// The class Server for Python. Calls that take the server's mutex release the GIL first.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "module/binding.hpp"
#include "module/names.hpp"
#include "server/server.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gemlet::arbiter;
using namespace gemlet::server;

namespace {

Uuid uuid_from(const nb::bytes& bytes) {
    if (bytes.size() != 16) throw std::invalid_argument("a device UUID has 16 bytes");
    Uuid uuid;
    std::memcpy(uuid.data(), bytes.c_str(), uuid.size());
    return uuid;
}

using SeenTuple = std::optional<std::tuple<uint64_t, uint32_t, uint64_t>>;

std::optional<Server::Seen> seen_from(const SeenTuple& seen) {
    if (!seen) return std::nullopt;
    return Server::Seen{std::get<0>(*seen), std::get<1>(*seen), std::get<2>(*seen)};
}

nb::bytes bytes_of(const Uuid& uuid) {
    return nb::bytes(uuid.data(), uuid.size());
}

ServerOptions options_from(const std::string& policy, nb::kwargs given) {
    ServerOptions options;
    options.policy = policy;
    take(given, "lead", options.lead);
    take(given, "trace", options.trace);
    take(given, "connections", options.connections);
    take(given, "uses", options.uses);
    take(given, "of_one", options.of_one);
    std::optional<uint64_t> host_memory;
    take(given, "host_memory", host_memory);
    options.host_memory = host_memory.value_or(kUnlimited);
    take(given, "epoch_overhead", options.residency.overhead);
    take(given, "epoch_min", options.residency.epoch_min);
    take(given, "max_wait", options.residency.max_wait);
    take(given, "claim_grace", options.claim_grace);
    options.residency.slow = options.claim_grace;
    take(given, "lost_rounds", options.lost_rounds);
    take(given, "refuse_files", options.refuse_files);
    if (!(options.residency.overhead > 0 && options.residency.overhead < 1))
        throw std::invalid_argument("epoch_overhead must be in (0, 1)");
    if (options.residency.epoch_min <= 0 || options.residency.max_wait <= 0)
        throw std::invalid_argument("epoch_min, max_wait: must be above 0");
    options.arbiter = parameters_from(given);
    return options;
}

void set_group(Server& self, const std::string& name, nb::kwargs fields) {
    GroupSettings settings;
    settings.spec = spec_from(name, fields);
#define TAKE(field) take(fields, #field, settings.field);
    GEMLET_SETTINGS_FIELDS(TAKE)
#undef TAKE
    std::optional<int> device;
    take(fields, "device", device);
    no_others(fields);
    nb::gil_scoped_release release;
    self.set_group(settings, device);
}

nb::object text(const std::string& s) {
    return nb::steal(PyUnicode_DecodeUTF8(s.data(), Py_ssize_t(s.size()), "replace"));
}

nb::dict client_dict(const ClientView& c) {
    nb::dict d;
    d["id"] = c.id;
    d["pid"] = c.pid;
    d["uid"] = c.uid;
    d["command"] = text(c.command);
    d["state"] = c.state;
    d["memory"] = c.memory;
    d["untracked"] = c.untracked;
    d["launches"] = c.launches;
    d["work_ns"] = c.work_ns;
    d["samples"] = c.samples;
    d["busy_samples"] = c.busy_samples;
    d["awaited_samples"] = c.awaited_samples;
    d["contexts"] = c.contexts;
    d["mps"] = c.mps;
    d["since_ns"] = c.since;
    if (!c.movable) {
        d["movable"] = nb::none();
        return d;
    }
    const MovableView& m = *c.movable;
    nb::dict movable;
    movable["bytes"] = m.usage.movable;
    movable["resident"] = m.usage.mapped;
    movable["allowed"] = m.usage.allowed;
    movable["here"] = m.usage.resident;
    movable["queued"] = m.usage.queued;
    movable["host"] = m.usage.host;
    movable["handover_ns"] = m.usage.last_handover;
    movable["reason"] = text(m.usage.reason);
    movable["moved_out"] = m.moved_out;
    movable["moved_in"] = m.moved_in;
    movable["dropped"] = m.dropped;
    movable["pinned"] = m.pinned;
    d["movable"] = movable;
    return d;
}

nb::dict group_dict(const GroupView& g) {
    const GroupSpec& spec = g.usage.spec;
    nb::dict d;
    d["name"] = text(spec.name);
#define PUT_SPEC(field) d[#field] = to_python(spec.field);
#define PUT_SETTING(field) d[#field] = to_python(g.settings.field);
    GEMLET_SPEC_FIELDS(PUT_SPEC)
    GEMLET_SETTINGS_FIELDS(PUT_SETTING)
#undef PUT_SPEC
#undef PUT_SETTING
    d["target"] = g.usage.target;
    d["used_ns"] = g.usage.used;
    d["throttled_ns"] = g.usage.throttled;
    d["speed"] = g.usage.speed < 0.0 ? nb::none() : nb::cast(g.usage.speed);
    d["why"] = kWhyNames[size_t(g.usage.why)];
    d["waiting"] = g.usage.waiting;
    d["holding"] = g.usage.holding;
    d["reason"] = text(g.usage.reason);
    d["memory_used"] = g.memory_used;
    d["untracked"] = g.untracked;
    d["made_by_client"] = g.made_by_client;
    nb::list latencies;
    for (const auto& [bound, count] : g.latencies) latencies.append(nb::make_tuple(bound, count));
    d["latencies"] = latencies;
    d["latency_sum_ns"] = g.latency_sum;
    d["programs"] = g.programs;
    d["expected"] = g.expected;
    d["launches"] = g.done.launches;
    d["work_ns"] = g.done.work_ns;
    d["moved"] = g.done.moved;
    d["swapped"] = g.swapped;
    d["awaits_memory"] = g.awaits_memory;
    d["memory_reason"] = text(g.memory_reason);
    d["beside_mps"] = to_python(g.beside_mps);
    nb::list clients;
    for (const ClientView& c : g.clients) clients.append(client_dict(c));
    d["clients"] = clients;
    nb::list awaited;
    for (const AwaitedView& a : g.awaited) {
        nb::dict process;
        process["pid"] = a.pid;
        process["memory"] = a.memory;
        process["contexts"] = a.contexts;
        awaited.append(process);
    }
    d["awaited"] = awaited;
    return d;
}

nb::dict unmanaged_dict(const Unmanaged& u) {
    nb::dict d;
    d["pid"] = u.pid;
    d["uid"] = u.uid;
    d["command"] = text(u.command);
    d["group"] = text(u.group);
    d["why"] = text(u.why);
    d["strict"] = to_python(u.strict);
    d["since_ns"] = u.since;
    d["joined"] = u.joined;
    return d;
}

nb::dict snapshot(Server& self, bool listed) {
    ServerView view;
    {
        nb::gil_scoped_release release;
        view = self.view(listed);
    }
    nb::dict d;
    d["now_ns"] = view.now;
    d["denied"] = view.denied;
    nb::list devices;
    for (const DeviceView& v : view.devices) {
        nb::dict device;
        device["uuid"] = bytes_of(v.uuid);
        device["index"] = v.index;
        device["policy"] = v.policy;
        device["ignored"] = v.ignored;
        device["capacity"] = to_python(v.capacity);
        device["held"] = v.held;
        device["host_promised"] = v.host_promised;
        device["context_estimate"] = v.context_estimate;
        nb::list groups;
        for (const GroupView& g : v.groups) groups.append(group_dict(g));
        device["groups"] = groups;
        devices.append(device);
    }
    d["devices"] = devices;
    nb::list groups;
    for (const GroupSettings& g : view.groups) groups.append(text(g.spec.name));
    d["groups"] = groups;
    d["ungoverned"] = view.unmanaged.size();
    nb::list unmanaged;
    if (listed)
        for (const Unmanaged& u : view.unmanaged) unmanaged.append(unmanaged_dict(u));
    d["unmanaged"] = unmanaged;
    return d;
}

nb::dict groups_by_pid(Server& self) {
    std::vector<std::pair<pid_t, std::string>> all;
    {
        nb::gil_scoped_release release;
        all = self.groups_by_pid();
    }
    nb::dict d;
    for (const auto& [pid, group] : all) d[nb::int_(pid)] = text(group);
    return d;
}

nb::list take_events(Server& self) {
    std::vector<Event> events;
    {
        nb::gil_scoped_release release;
        events = self.take_events();
    }
    nb::list list;
    for (const Event& e : events) {
        nb::dict d;
        d["kind"] = e.kind;
        d["group"] = text(e.group);
        d["command"] = text(e.command);
        d["device"] = e.device.empty() ? nb::none() : nb::cast(std::stoi(e.device));
        d["text"] = text(e.text);
        d["pid"] = e.pid;
        d["uid"] = e.uid;
        list.append(d);
    }
    return list;
}

nb::tuple trace(Server& self, uint64_t since, size_t most) {
    Trace::Part part;
    {
        nb::gil_scoped_release release;
        part = self.trace(since, most);
    }
    nb::list steps;
    for (const Step& step : part.steps) steps.append(nb::make_tuple(step.at, step.client, step.what, step.value));
    return nb::make_tuple(steps, part.next, part.lost);
}

nb::list traced(Server& self) {
    std::vector<Traced> all;
    {
        nb::gil_scoped_release release;
        all = self.traced();
    }
    nb::list list;
    for (const Traced& t : all) {
        nb::dict d;
        d["client"] = t.client;
        d["pid"] = t.pid;
        d["uid"] = t.uid;
        d["command"] = text(t.command);
        d["group"] = text(t.group);
        d["device"] = t.device;
        d["state"] = t.state;
        d["why"] = kWhyNames[size_t(t.why)];
        list.append(d);
    }
    return list;
}

nb::object optional_text(const std::optional<std::string>& s) {
    return s ? text(*s) : nb::none();
}

nb::list ledger_dicts(const std::vector<LedgerImage>& images) {
    nb::list ledgers;
    for (const LedgerImage& l : images) {
        nb::dict d;
        d["device"] = bytes_of(l.device);
        d["index"] = l.index;
        d["context_estimate"] = l.context_estimate;
        d["group"] = text(l.group);
        d["fd"] = l.fd;
        d["number"] = l.number;
        nb::list slots;
        for (const HeldSlot& s : l.slots) {
            nb::dict slot;
            slot["index"] = s.index;
            slot["pid"] = s.pid;
            slot["uid"] = s.uid;
            slot["started"] = s.started;
            slot["fd"] = s.process_fd;
            slot["who"] = text(s.who);
            slot["administrator"] = s.administrator;
            slot["contexts"] = s.contexts;
            slot["used"] = s.used;
            slot["untracked"] = s.untracked;
            slot["fixed"] = s.has.fixed;
            slot["movable"] = s.has.movable;
            slot["mapped"] = s.has.mapped;
            slots.append(slot);
        }
        d["slots"] = slots;
        ledgers.append(d);
    }
    return ledgers;
}

nb::list members(Server& self) {
    std::vector<LedgerImage> images;
    {
        nb::gil_scoped_release release;
        images = self.members();
    }
    return ledger_dicts(images);
}

// Descriptors are the server's, open until it leaves.
nb::dict hand_over(Server& self) {
    Estate estate;
    {
        nb::gil_scoped_release release;
        estate = self.hand_over();
    }
    nb::list listeners, callers;
    for (const ListenerImage& l : estate.listeners) {
        nb::dict d;
        d["path"] = text(l.path);
        d["fd"] = l.fd;
        listeners.append(d);
    }
    for (const Caller& c : estate.callers) {
        nb::dict d;
        d["fd"] = c.fd;
        d["fixed"] = optional_text(c.fixed);
        d["group"] = text(c.group);
        d["strict"] = to_python(c.strict);
        d["version"] = c.version;
        callers.append(d);
    }
    nb::dict all;
    all["listeners"] = listeners;
    all["ledgers"] = ledger_dicts(estate.ledgers);
    all["callers"] = callers;
    return all;
}

template <class T>
T field(const nb::dict& d, const char* name) {
    return nb::cast<T>(d[name]);
}

void inherit_ledger(Server& self, const nb::dict& d) {
    LedgerImage image{
        uuid_from(field<nb::bytes>(d, "device")), field<int>(d, "index"), field<uint64_t>(d, "context_estimate"),
        field<std::string>(d, "group"),           field<int>(d, "fd"),    {}};
    if (d.contains("number")) image.number = field<uint32_t>(d, "number");
    if (d.contains("ended")) image.ended = field<std::vector<uint32_t>>(d, "ended");
    for (nb::handle each : field<nb::list>(d, "slots")) {
        const auto s = nb::cast<nb::dict>(each);
        image.slots.push_back(
            {field<uint32_t>(s, "index"),
             field<pid_t>(s, "pid"),
             field<uid_t>(s, "uid"),
             field<uint64_t>(s, "started"),
             field<int>(s, "fd"),
             field<std::string>(s, "who"),
             field<bool>(s, "administrator"),
             field<uint32_t>(s, "contexts"),
             field<uint64_t>(s, "used"),
             field<uint64_t>(s, "untracked"),
             {field<uint64_t>(s, "fixed"), field<uint64_t>(s, "movable"), field<uint64_t>(s, "mapped")},
             s.contains("before") ? field<uint32_t>(s, "before") : gemlet::wire::kLedgerSlots});
    }
    nb::gil_scoped_release release;
    self.inherit_ledger(image);
}

void inherit_caller(Server& self, const nb::dict& d) {
    const Caller caller{field<int>(d, "fd"), field<std::optional<std::string>>(d, "fixed"),
                        field<std::string>(d, "group"), field<std::optional<bool>>(d, "strict"),
                        field<uint16_t>(d, "version")};
    nb::gil_scoped_release release;
    self.inherit_caller(caller);
}

}  // namespace

void bind_server(nb::module_& m) {
    nb::list bounds;
    for (size_t i = 0; i < Latencies::kBounds; ++i) bounds.append(Latencies::bound(i));
    m.attr("LATENCY_BOUNDS_NS") = nb::tuple(bounds);
    m.def("can_keep_in_place", can_keep_in_place);
    m.def("close_apart", close_apart, "socket"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("refuse_files", refuse_files, "socket"_a);
    nb::class_<Server>(m, "Server")
        .def(
            "__init__",
            [](Server* self, const std::string& policy, const nb::kwargs& parameters) {
                new (self) Server(options_from(policy, parameters));
            },
            "policy"_a = "fair", "parameters"_a)
        .def("listen", &Server::listen, "path"_a, "group"_a = nb::none(), "mode"_a = 0600,
             nb::call_guard<nb::gil_scoped_release>())
        .def("unlisten", &Server::unlisten, "path"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "add_device",
            [](Server& self, const nb::bytes& uuid, int index, const std::string& policy, uint64_t context_estimate) {
                Uuid id = uuid_from(uuid);
                nb::gil_scoped_release release;
                self.add_device(id, index, policy, context_estimate);
            },
            "uuid"_a, "index"_a, nb::kw_only(), "policy"_a = "", "context_estimate"_a = 0)
        .def(
            "set_capacity",
            [](Server& self, const nb::bytes& uuid, std::optional<uint64_t> bytes,
               std::optional<Nanoseconds> max_wait) {
                Uuid id = uuid_from(uuid);
                nb::gil_scoped_release release;
                self.set_capacity(id, bytes, max_wait);
            },
            "uuid"_a, "bytes"_a.none(), "max_wait"_a = nb::none())
        .def("set_host_memory", &Server::set_host_memory, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "set_accounts",
            [](Server& self, const std::vector<std::tuple<uid_t, uid_t, uid_t>>& ranges) {
                std::vector<UidRange> made;
                for (const auto& [first, last, account] : ranges) made.push_back({first, last, account});
                nb::gil_scoped_release release;
                self.set_accounts(std::move(made));
            },
            "ranges"_a)
        .def("set_group", set_group, "name"_a, "fields"_a)
        .def(
            "bind_group",
            [](Server& self, const std::string& name, const std::vector<nb::bytes>& devices) {
                std::vector<Uuid> uuids;
                uuids.reserve(devices.size());
                for (const nb::bytes& uuid : devices) uuids.push_back(uuid_from(uuid));
                nb::gil_scoped_release release;
                return self.bind_group(name, std::move(uuids));
            },
            "name"_a, "devices"_a)
        .def("maker", &Server::maker, "name"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("remove_group", &Server::remove_group, "name"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "set_memory_of_processes",
            [](Server& self, const nb::bytes& uuid,
               const std::vector<std::tuple<pid_t, std::optional<uint64_t>, SeenTuple>>& processes) {
                Uuid id = uuid_from(uuid);
                std::vector<Server::Holding> holdings;
                holdings.reserve(processes.size());
                for (const auto& [pid, bytes, seen] : processes)
                    holdings.push_back({pid, bytes.value_or(0), seen_from(seen), !bytes});
                nb::gil_scoped_release release;
                self.set_memory_of_processes(id, holdings);
            },
            "uuid"_a, "processes"_a)
        .def("start", &Server::start, nb::call_guard<nb::gil_scoped_release>())
        .def("stop", &Server::stop, nb::call_guard<nb::gil_scoped_release>())
        .def("hand_over", hand_over)
        .def("leave", &Server::leave, nb::call_guard<nb::gil_scoped_release>())
        .def("inherit_listener", &Server::inherit_listener, "path"_a, "fd"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("inherit_ledger", inherit_ledger, "image"_a)
        .def("inherit_caller", inherit_caller, "caller"_a)
        .def("members", members)
        .def("knows_members", &Server::knows_members, nb::call_guard<nb::gil_scoped_release>())
        .def("govern", &Server::govern, nb::call_guard<nb::gil_scoped_release>())
        .def("snapshot", snapshot, "listed"_a = true)
        .def("groups_by_pid", groups_by_pid)
        .def("eventfd", &Server::event_fd)
        .def("take_events", take_events)
        .def("clock", [](const Server&) { return Server::clock(); })
        .def("trace", trace, "since"_a, "most"_a)
        .def("trace_at", &Server::trace_at, "at"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("traced", traced);
}
