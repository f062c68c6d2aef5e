// Looking a symbol up without dlsym: the hook exports dlsym and dlvsym itself, so it cannot ask them for the real
// ones.
#pragma once

namespace gemlet::hook {

// The symbol as the next object behind this library in load order defines it (so an interposer loaded after us stays
// in the chain), or as any other object does if we were loaded last; null if none does.
void* next_definition(const char* name);

}  // namespace gemlet::hook
