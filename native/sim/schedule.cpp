#include "schedule.hpp"

#include <algorithm>

namespace gemlet::sim {
namespace {

uint64_t backlog(const Channel& c) {
    return c.owner == 0 ? 0 : c.submitted - c.executed;
}

uint32_t party_of(const DeviceState& s, uint32_t channel) {
    return s.channels[channel].share != 0 ? kMpsParty : channel;
}

template <class Do>
void each_member(DeviceState& s, uint32_t party, Do&& act) {
    if (party < kChannels) return act(s.channels[party]);
    for (uint32_t i = 0; i < s.channels_used; ++i)
        if (s.channels[i].share != 0) act(s.channels[i]);
}

bool has_work(const DeviceState& s, uint32_t party) {
    if (party < kChannels) return backlog(s.channels[party]) > 0;
    for (uint32_t i = 0; i < s.channels_used; ++i)
        if (s.channels[i].share != 0 && backlog(s.channels[i]) > 0) return true;
    return false;
}

bool others_have_work(const DeviceState& s, uint32_t except) {
    for (uint32_t i = 0; i < s.channels_used; ++i)
        if (backlog(s.channels[i]) > 0 && party_of(s, i) != except) return true;
    return false;
}

// Round robin: the next party after `after` that has work. MPS comes after the last channel.
uint32_t next_with_work(const DeviceState& s, uint32_t after) {
    const uint32_t places = s.channels_used + 1;
    const uint32_t from = after < kMpsParty ? after : places - 1;
    for (uint32_t i = 1; i <= places; ++i) {
        const uint32_t place = (from + i) % places;
        const uint32_t party = place == s.channels_used ? kMpsParty : place;
        if ((party == kMpsParty || s.channels[party].share == 0) && has_work(s, party)) return party;
    }
    return kNone;
}

using Parts = unsigned __int128;  // of a nanosecond, of kWhole

uint64_t divide_up(uint64_t work, uint32_t parts, uint64_t rate) {
    return static_cast<uint64_t>((Parts{work} * kWhole - parts + rate - 1) / rate);
}

void add_parts(uint64_t& whole, uint32_t& parts, Nanoseconds time, uint64_t rate) {
    const Parts all = Parts{time} * rate + parts;
    whole += static_cast<uint64_t>(all / kWhole);
    parts = static_cast<uint32_t>(all % kWhole);
}

// --- a context's rate

Span head_span(const Channel& c) {
    if (c.share == 0 || c.span_count == 0) return {c.submitted, kWhole};
    return c.spans[c.span_first % kSpans];
}

void set_rate(const DeviceState& s, Channel& c, uint32_t rate) {
    if (c.rate == rate) return;
    c.rate = rate;
    if (rate == 0) return;
    if (c.segment_count > 0) {
        const Segment& last = c.segments[(c.segment_count - 1) % kSegments];
        const Parts then = Parts{last.work} * kWhole + last.parts,
                    now = Parts{c.executed} * kWhole + c.executed_parts;
        if (last.rate == rate && now - then == Parts{s.time - last.time} * rate) return;  // it never stopped
    }
    c.segments[c.segment_count++ % kSegments] = {s.time, c.executed, c.executed_parts, rate};
}

void pause(DeviceState& s, uint32_t party) {
    each_member(s, party, [](Channel& c) { c.rate = 0; });
}

// What each context of the party that runs gets now.
void set_rates(DeviceState& s) {
    uint64_t normal = 0, below = 0;
    each_member(s, s.current, [&](Channel& c) {
        if (backlog(c) > 0) (c.below_normal != 0 ? below : normal) += head_span(c).demand;
    });
    const uint64_t least_below = std::min<uint64_t>(below, kWhole / 100);
    const uint64_t for_normal = std::min<uint64_t>(normal, kWhole - least_below);
    const uint64_t for_below = std::min<uint64_t>(below, kWhole - for_normal);
    each_member(s, s.current, [&](Channel& c) {
        const uint64_t wanted = c.below_normal != 0 ? below : normal,
                       given = c.below_normal != 0 ? for_below : for_normal;
        const uint64_t rate = backlog(c) == 0 ? 0 : std::max<uint64_t>(given * kWhole / wanted, 1);
        set_rate(s, c, static_cast<uint32_t>(rate));
    });
}

// Lets the current party work until `to`, or until one of its contexts comes to work that asks for something else.
void run_party(DeviceState& s, Nanoseconds to) {
    set_rates(s);
    each_member(s, s.current, [&](Channel& c) {
        if (c.rate == 0) return;
        const uint64_t work = head_span(c).end - c.executed;
        to = std::min(to, s.time + divide_up(work, c.executed_parts, c.rate));
    });
    each_member(s, s.current, [&](Channel& c) {
        if (c.rate == 0) return;
        const uint64_t demand = head_span(c).demand;
        add_parts(c.executed, c.executed_parts, to - s.time, c.rate);
        add_parts(c.used, c.used_parts, to - s.time, demand * c.rate / kWhole);
        while (c.span_count > 0 && c.spans[c.span_first % kSpans].end <= c.executed) {
            ++c.span_first;
            --c.span_count;
        }
    });
    s.busy += to - s.time;
    s.time = to;
}

// When something else happens to the device than work going on.
Nanoseconds next_change(DeviceState& s) {
    if (s.phase == Phase::kSwitching) return std::max(s.phase_end, s.time + 1);
    const bool works = s.phase == Phase::kRunning && has_work(s, s.current);
    if (!works) return next_with_work(s, s.resident) == kNone ? kNever : s.time + 1;
    set_rates(s);
    Nanoseconds at = others_have_work(s, s.current) ? std::max(s.phase_end, s.time + 1) : kNever;
    each_member(s, s.current, [&](Channel& c) {
        if (c.rate != 0)
            at = std::min(at, s.time + divide_up(head_span(c).end - c.executed, c.executed_parts, c.rate));
    });
    return at;
}

void add_span(Channel& c, uint64_t end, uint64_t demand) {
    Span* last = c.span_count > 0 ? &c.spans[(c.span_first + c.span_count - 1) % kSpans] : nullptr;
    if (last == nullptr || (last->demand != demand && c.span_count < kSpans)) {
        c.spans[(c.span_first + c.span_count++) % kSpans] = {end, demand};
        return;
    }
    // No room for another: the last one becomes the mean of what it was and what comes.
    const uint64_t before = c.span_count > 1 ? c.spans[(c.span_first + c.span_count - 2) % kSpans].end : c.executed;
    const double old_work = static_cast<double>(last->end - before), new_work = static_cast<double>(end - last->end);
    if (last->demand != demand)
        last->demand = static_cast<uint64_t>(
            (static_cast<double>(last->demand) * old_work + static_cast<double>(demand) * new_work) /
            (old_work + new_work));
    last->end = end;
}

// --- turns

void begin_running(DeviceState& s, const Profile& p) {
    s.phase = Phase::kRunning;
    s.phase_end = s.time + p.slice_ns;
    set_rates(s);
}

void become_idle(DeviceState& s) {
    s.phase = Phase::kIdle;
    s.current = kNone;
    s.idle_since = s.time;
}

// Gives the device to the next party with work, if any.
void turn_over(DeviceState& s, const Profile& p) {
    if (s.current != kNone) pause(s, s.current);
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
        } else if (!has_work(s, s.current)) {  // it was taken away
            turn_over(s, p);
        } else {
            const bool contended = others_have_work(s, s.current);
            run_party(s, contended ? std::min(to, std::max(s.phase_end, s.time)) : to);
            if (!contended && s.time >= s.phase_end)  // alone: one slice follows the other
                s.phase_end += ((s.time - s.phase_end) / p.slice_ns + 1) * p.slice_ns;
            if (!has_work(s, s.current) || (contended && s.time >= s.phase_end)) turn_over(s, p);
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

uint64_t schedule_submit(DeviceState& s, const Profile& p, uint32_t channel, uint64_t cost, uint32_t width,
                         Nanoseconds ready, Nanoseconds now) {
    schedule_advance(s, p, now);
    Channel& c = s.channels[channel];
    if (s.phase == Phase::kIdle && ready < s.time) s.time = std::max(ready, s.idle_since);
    if (c.share != 0 && cost > 0) {
        const uint32_t demand = std::max(1u, std::min(c.share, width));
        cost = static_cast<uint64_t>(static_cast<double>(cost) * width / demand);
        add_span(c, c.submitted + cost, demand);
    }
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
    // Played out from one change to the next, for 256 of them: a sleeper looks again before long anyway.
    for (int changes = 0; changes < 256 && c.executed < work; ++changes) {
        Nanoseconds to = next_change(s);
        if (c.rate != 0) to = std::min(to, s.time + divide_up(work - c.executed, c.executed_parts, c.rate));
        if (to == kNever) return to;  // it was taken away
        schedule_advance(s, p, to);
    }
    return c.executed >= work ? schedule_time_of(c, work) : s.time + (work - c.executed);
}

Nanoseconds schedule_time_of(const Channel& c, uint64_t work) {
    if (c.segment_count == 0) return 0;
    const uint64_t oldest = c.segment_count > kSegments ? c.segment_count - kSegments : 0;
    for (uint64_t i = c.segment_count; i-- > oldest;) {
        const Segment& segment = c.segments[i % kSegments];
        if (segment.work < work) return segment.time + divide_up(work - segment.work, segment.parts, segment.rate);
    }
    return c.segments[oldest % kSegments].time;
}

void schedule_abandon(DeviceState& s, uint32_t channel) {
    Channel& c = s.channels[channel];
    c.submitted = c.executed;
    c.span_count = 0;
}

void schedule_drop_channel(DeviceState& s, uint32_t channel) {
    Channel& c = s.channels[channel];
    if (c.owner == 0) return;
    const uint32_t party = party_of(s, channel);
    s.owners[c.owner - 1].retired += c.used;
    c = Channel{};
    bool others = false;  // the party goes on
    if (party == kMpsParty) each_member(s, party, [&others](Channel&) { others = true; });
    if (s.resident == party && !others) s.resident = kNone;
    if (s.current == party && !others) become_idle(s);
    while (s.channels_used > 0 && s.channels[s.channels_used - 1].owner == 0) --s.channels_used;
}

uint64_t schedule_used(const DeviceState& s, uint32_t owner) {
    uint64_t used = s.owners[owner].retired;
    for (uint32_t i = 0; i < s.channels_used; ++i)
        if (s.channels[i].owner == owner + 1) used += s.channels[i].used;
    return used;
}

}  // namespace gemlet::sim
