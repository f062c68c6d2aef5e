// gemlet._native: the arbiter in virtual time, for tests and `gemlet simulate`, and the server in real time.
#include <nanobind/nanobind.h>

#include "module/binding.hpp"
#include "module/names.hpp"

namespace nb = nanobind;

void bind_arbiter(nb::module_& m);
void bind_residency(nb::module_& m);
void bind_server(nb::module_& m);

namespace {

template <size_t N>
nb::tuple tuple_of(const char* const (&names)[N]) {
    nb::list list;
    for (const char* name : names) list.append(name);
    return nb::tuple(list);
}

nb::dict enumerations() {
    using namespace gemlet::arbiter;
    nb::dict names;
    names["action"] = tuple_of(kActionKinds);
    names["why"] = tuple_of(kWhyNames);
    names["gang"] = tuple_of(kGangNames);
    names["priority"] = tuple_of(kPriorityNames);
    names["refusal"] = tuple_of(kRefusals);
    names["stop_reason"] = tuple_of(kStopReasons);
    names["workload"] = tuple_of(kWorkloadNames);
    return names;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The native parts of the daemon; _native.pyi describes them.";
    m.attr("ENUMERATIONS") = enumerations();
    bind_arbiter(m);
    bind_residency(m);
#ifndef GEMLET_NO_SERVER
    bind_server(m);
#endif
}
