// gemlet._native: the arbiter in virtual time, for tests and `gemlet simulate`, and the server in real time.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_arbiter(nb::module_& m);
void bind_residency(nb::module_& m);
void bind_server(nb::module_& m);

NB_MODULE(_native, m) {
    m.doc() = "The native parts of the daemon; _native.pyi describes them.";
    bind_arbiter(m);
    bind_residency(m);
#ifndef GEMLET_NO_SERVER
    bind_server(m);
#endif
}
