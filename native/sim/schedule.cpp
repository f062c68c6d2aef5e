#include "schedule.hpp"

#include <algorithm>

namespace gemlet::sim {
namespace {

uint64_t backlog(const Channel& c) {
    return c.owner == 0 ? 0 : c.submitted - c.executed;
}

// Round robin: the next channel after `after` that has work.
uint32_t next_with_work(const DeviceState& s, uint32_t after) {
    for (uint32_t i = 1; i <= s.channels_used; ++i) {
        const uint32_t candidate = (after == kNone ? i - 1 : after + i) % s.channels_used;
        if (backlog(s.channels[candidate]) > 0) return candidate;
    }
    return kNone;
}

bool others_have_work(const DeviceState& s, uint32_t except) {
    for (uint32_t i = 0; i < s.channels_used; ++i)
        if (i != except && backlog(s.channels[i]) > 0) return true;
    return false;
}

void begin_segment(DeviceState& s, Channel& c) {
    if (c.segment_count > 0) {
        const Segment& last = c.segments[(c.segment_count - 1) % kSegments];
        if (last.time + (c.executed - last.work) == s.time) return;  // it never stopped
    }
    c.segments[c.segment_count++ % kSegments] = {s.time, c.executed};
}

void begin_running(DeviceState& s, const Profile& p) {
    s.phase = Phase::kRunning;
    s.phase_end = s.time + p.slice_ns;
    begin_segment(s, s.channels[s.current]);
}

void become_idle(DeviceState& s) {
    s.phase = Phase::kIdle;
    s.current = kNone;
    s.idle_since = s.time;
}

// Gives the device to the next channel with work, if any.
void turn_over(DeviceState& s, const Profile& p) {
    const uint32_t next = next_with_work(s, s.resident);
    if (next == kNone) return become_idle(s);
    s.current = next;
    if (next == s.resident || s.resident == kNone) {
        s.resident = next;
        return begin_running(s, p);
    }
    s.resident = next;
    s.phase = Phase::kSwitching;
    s.phase_end = s.time + p.switch_ns;
    ++s.switches;
}

// Everything up to `to`, within one utilisation sample.
void advance_within_sample(DeviceState& s, const Profile& p, Nanoseconds to) {
    while (s.time < to) {
        if (s.phase == Phase::kIdle) {
            turn_over(s, p);
            if (s.phase == Phase::kIdle) {
                s.time = to;
                return;
            }
        } else if (s.phase == Phase::kSwitching) {
            s.time = std::min(to, std::max(s.phase_end, s.time));
            if (s.time >= s.phase_end) begin_running(s, p);
        } else {
            Channel& c = s.channels[s.current];
            const bool contended = others_have_work(s, s.current);
            Nanoseconds end = std::min(to, s.time + backlog(c));
            if (contended) end = std::min(end, std::max(s.phase_end, s.time));
            c.executed += end - s.time;
            s.busy += end - s.time;
            s.time = end;
            if (!contended && s.time >= s.phase_end)  // alone: one slice follows the other
                s.phase_end += ((s.time - s.phase_end) / p.slice_ns + 1) * p.slice_ns;
            if (backlog(c) == 0 || (contended && s.time >= s.phase_end)) turn_over(s, p);
        }
    }
}

void take_sample(DeviceState& s, uint64_t index) {
    s.sample_index = index;
    s.busy_samples[index % kSamples] = s.busy;
    for (uint32_t i = 0; i < s.owners_used; ++i)
        if (s.owners[i].pid != 0) s.owners[i].samples[index % kSamples] = schedule_used(s, i);
}

}  // namespace

void schedule_reset(DeviceState& s, Nanoseconds now) {
    s = DeviceState{};
    s.time = s.idle_since = now;
    s.current = s.resident = kNone;
    s.sample_index = now / kSamplePeriod;
}

void schedule_advance(DeviceState& s, const Profile& p, Nanoseconds now) {
    if (now <= s.time) return;
    const uint64_t last = now / kSamplePeriod;
    // After a long pause only the newest samples matter, but each must be what it would have been.
    uint64_t index = s.sample_index + 1;
    if (last > kSamples && index < last - kSamples) index = last - kSamples;
    for (; index <= last; ++index) {
        advance_within_sample(s, p, index * kSamplePeriod);
        take_sample(s, index);
    }
    advance_within_sample(s, p, now);
}

uint64_t schedule_submit(DeviceState& s, const Profile& p, uint32_t channel, uint64_t cost, Nanoseconds ready,
                         Nanoseconds now) {
    schedule_advance(s, p, now);
    Channel& c = s.channels[channel];
    if (s.phase == Phase::kIdle && ready < s.time) s.time = std::max(ready, s.idle_since);
    c.submitted += cost;
    const uint64_t end = c.submitted;
    schedule_advance(s, p, now);
    return end;
}

Nanoseconds schedule_copy(DeviceState& s, const Profile& p, unsigned engine, uint64_t bytes, bool first,
                          Nanoseconds ready) {
    const double rate = engine == 0 ? p.host_to_device_bytes_per_ns : p.device_to_host_bytes_per_ns;
    const auto moving = static_cast<Nanoseconds>(static_cast<double>(bytes) / rate);
    s.copy_free[engine] = std::max(s.copy_free[engine], ready) + moving + (first ? p.copy_latency_ns : 0);
    return s.copy_free[engine];
}

Nanoseconds schedule_forecast(DeviceState& s, const Profile& p, uint32_t channel, uint64_t work) {
    const Channel& c = s.channels[channel];
    if (c.executed >= work) return schedule_time_of(c, work);
    // Alone, or for a first guess, the answer is one addition.
    const Nanoseconds alone = s.time + (work - c.executed);
    if (s.phase == Phase::kRunning && s.current == channel && !others_have_work(s, channel)) return alone;
    // Otherwise play it out. A sleeper looks again after some turns anyway, so no need to play for long.
    Nanoseconds to = alone;
    for (int turns = 0; turns < 64 && c.executed < work; ++turns) {
        schedule_advance(s, p, to);
        if (c.executed < work) to = s.time + (work - c.executed);
    }
    return c.executed >= work ? schedule_time_of(c, work) : to;
}

Nanoseconds schedule_time_of(const Channel& c, uint64_t work) {
    if (c.segment_count == 0) return 0;
    const uint64_t oldest = c.segment_count > kSegments ? c.segment_count - kSegments : 0;
    for (uint64_t i = c.segment_count; i-- > oldest;) {
        const Segment& segment = c.segments[i % kSegments];
        if (segment.work < work) return segment.time + (work - segment.work);
    }
    return c.segments[oldest % kSegments].time;
}

void schedule_drop_channel(DeviceState& s, uint32_t channel) {
    Channel& c = s.channels[channel];
    if (c.owner == 0) return;
    s.owners[c.owner - 1].retired += c.executed;
    c = Channel{};
    if (s.resident == channel) s.resident = kNone;
    if (s.current == channel) become_idle(s);
    while (s.channels_used > 0 && s.channels[s.channels_used - 1].owner == 0) --s.channels_used;
}

uint64_t schedule_used(const DeviceState& s, uint32_t owner) {
    uint64_t used = s.owners[owner].retired;
    for (uint32_t i = 0; i < s.channels_used; ++i)
        if (s.channels[i].owner == owner + 1) used += s.channels[i].executed;
    return used;
}

}  // namespace gemlet::sim
