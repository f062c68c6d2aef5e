// The rows of cuGetProcAddress. The symbols are declared without their prototypes: only their addresses matter, and
// some of them no public header declares.
#include "proc_address_table.hpp"

#define GEMLET_SIM_PROC(NAME, FLAG, VERSION, SYMBOL) extern "C" __attribute__((visibility("default"))) int SYMBOL();
#include "exports.inc"
#undef GEMLET_SIM_PROC

namespace gemlet::sim {

const ProcRow kProcRows[] = {
#define GEMLET_SIM_PROC(NAME, FLAG, VERSION, SYMBOL) {#NAME, FLAG, VERSION, reinterpret_cast<void*>(&SYMBOL)},
#include "exports.inc"
#undef GEMLET_SIM_PROC
};

const unsigned kProcRowCount = sizeof kProcRows / sizeof kProcRows[0];

}  // namespace gemlet::sim
