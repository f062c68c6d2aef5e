// How the parts of the lookup machinery see each other: driver.cpp (the table), intercept.cpp (the program's
// lookups), check_lookup.cpp (is the table complete?).
#pragma once

#include <optional>
#include <string_view>

#include "hook/lookup/driver.h"

namespace gemlet::hook {

// The lookups as the next object in load order defines them: glibc's, or those of an interposer behind us.
void* next_dlsym();
void* next_dlvsym();

// One internal lookup through them; leaves no dlerror() behind.
void* quiet_dlsym(void* handle, const char* name);

// A handle of a library if it is loaded already, else null; leaves no dlerror() behind.
void* loaded_library(const char* soname);

const char* name_of(Symbol symbol);
void* hook_of(Symbol symbol);
std::optional<Symbol> hooked_symbol(std::string_view name);

// Fills the table if libcuda is loaded. `address`, if not null, is a driver function some lookup found: its library
// is the driver when no libcuda.so.1 can be found by name. True if the table is filled.
bool driver_found(void* address = nullptr);

// Address of any driver function in the real libcuda, hooked or not; null if it has none of that name.
void* real_symbol(const char* name);

// The hook for an address that belongs to the real driver, or the address itself.
void* redirect(void* address);

// Another address the driver hands out for a function of the table.
void learn_alias(void* address, Symbol symbol);

// Asks the driver's cuGetProcAddress for every hooked name, once per process. If it hands out addresses the table
// does not know, says so in one line and learns them.
void check_lookup();

}  // namespace gemlet::hook
