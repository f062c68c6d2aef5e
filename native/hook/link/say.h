// The few messages that the hook prints for people: one line on stderr, once per topic and process.
#pragma once

namespace gemlet::hook {

enum class Topic { kDaemon, kSilent, kVersion, kAttach, kMemory, kHost, kLookup, kMultiprocessors, kCount };

// Written with one write(2), so lines of several processes do not mix. Silenced by GEMLET_QUIET=1.
[[gnu::format(printf, 2, 3)]] void say_once(Topic topic, const char* format, ...);

// Lets a topic speak again (the daemon came back).
void may_say_again(Topic topic);

}  // namespace gemlet::hook
