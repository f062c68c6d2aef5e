// Random histories of one device through native/sim/schedule.cpp: contexts and MPS clients come, submit, and go.
// What must hold whatever happens is checked after each step; the first thing that does not ends the program.
//
//   - looking often or seldom makes no difference: two copies, one advanced in many small steps, stay the same
//   - no context executes what was not submitted, and together they use no more than the time that passed
//   - where each MPS client asks for all of the device, all of it is used while there is work
//   - a forecast is met exactly if nothing is submitted meanwhile
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "schedule.hpp"

using namespace gemlet::sim;

namespace {

unsigned long seed = 0, step = 0;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "seed %lu, step %lu: %s\n", seed, step, what);
    std::exit(1);
}

void compare(const DeviceState& a, const DeviceState& b) {
    require(a.time == b.time && a.busy == b.busy && a.switches == b.switches, "the device depends on who looks");
    for (uint32_t i = 0; i < kChannels; ++i)
        require(std::memcmp(&a.channels[i], &b.channels[i], sizeof(Channel)) == 0, "a context depends on who looks");
}

uint64_t used(const DeviceState& s) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 2; ++i) sum += schedule_used(s, i);
    return sum;
}

void history(const Profile& profile) {
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t n) { return random() % n; };
    auto state = std::make_unique<DeviceState>(), often = std::make_unique<DeviceState>();
    auto future = std::make_unique<DeviceState>();
    Nanoseconds now = 1'000'000'000;
    schedule_reset(*state, now);
    for (uint32_t i = 0; i < 2; ++i) state->owners[i].pid = i + 1;
    state->owners_used = 2;
    *often = *state;
    const bool all_wide = below(3) == 0;
    for (step = 0; step < 400; ++step) {
        const Nanoseconds before = now;
        const uint64_t used_before = used(*state), busy_before = state->busy;
        now += below(20) == 0 ? below(40'000'000) : below(300'000);
        for (Nanoseconds t = before; t < now; t += 1 + below(now - before)) schedule_advance(*often, profile, t);
        schedule_advance(*often, profile, now);
        schedule_advance(*state, profile, now);
        compare(*state, *often);
        for (uint32_t i = 0; i < kChannels; ++i)
            require(state->channels[i].executed <= state->channels[i].submitted, "more executed than submitted");
        const uint64_t use = used(*state) - used_before, busy = state->busy - busy_before;
        require(use <= now - before + kChannels, "more used than there is");
        if (all_wide) require(use + kChannels + busy / 1000 >= busy, "time was lost");

        const uint32_t channel = static_cast<uint32_t>(below(6));
        Channel& c = state->channels[channel];
        if (c.owner == 0) {
            c.owner = 1 + static_cast<uint32_t>(below(2));
            c.share = below(3) == 0 ? 0 : all_wide ? kWhole : static_cast<uint32_t>(1 + below(kWhole));
            c.below_normal = below(4) == 0 ? 1 : 0;
            if (state->channels_used <= channel) state->channels_used = channel + 1;
        } else if (below(40) == 0) {
            schedule_drop_channel(*state, channel);
        } else if (below(60) == 0) {
            schedule_abandon(*state, channel);
        } else {
            for (uint64_t kernels = below(12); kernels-- > 0;) {
                const uint64_t width = all_wide || below(2) == 0 ? kWhole : 1 + below(kWhole);
                schedule_submit(*state, profile, channel, below(3'000'000), static_cast<uint32_t>(width),
                                now - below(1000), now);
            }
            if (c.submitted > c.executed) {
                *future = *state;
                const uint64_t work = c.executed + 1 + below(c.submitted - c.executed);
                const Nanoseconds at = schedule_forecast(*future, profile, channel, work);
                *future = *state;
                schedule_advance(*future, profile, at - 2);
                require(future->channels[channel].executed < work, "a forecast is too late");
                *future = *state;
                schedule_advance(*future, profile, at + 2);
                // A long wait is forecast in part only.
                if (at < now + 20 * profile.slice_ns)
                    require(future->channels[channel].executed >= work, "a forecast is too early");
            }
        }
        *often = *state;
    }
}

}  // namespace

int main() {
    Profile profile{};
    profile.slice_ns = 2'090'000;
    profile.switch_ns = 155'000;
    for (seed = 0; seed < 100; ++seed) history(profile);
    std::puts("ok");
}
