#include "hook/submit/token.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "futex.h"
#include "hook/link/clock.h"
#include "hook/link/connection.h"
#include "hook/link/say.h"
#include "hook/link/version.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/own_thread.h"
#include "hook/submit/device.h"
#include "hook/submit/governance.h"
#include "hook/submit/patience.h"
#include "hook/submit/swap_events.h"
#include "hook/submit/waits.h"

namespace gemlet::hook {

using wire::StopReason;
using wire::TokenState;

namespace {

constexpr uint64_t kPollAtLeast = 20'000;  // whatever the page says
constexpr uint64_t kPollDraining = 25'000;
constexpr uint64_t kPollWaiting = 250'000'000;
constexpr uint64_t kReconnect = 250'000'000;
constexpr uint64_t kOrderComes = 300'000;  // the daemon's order to stop takes about 80 us
// After an alarm that no order followed (the other client fits beside this one under MPS, or is malicious), alarms
// are ignored for this long, so they cost at most a fiftieth of the time.
constexpr uint64_t kFalseAlarm = 50 * kOrderComes;

wire::Message message(Device& device, wire::MessageType type, uint32_t epoch) {
    wire::Message m{};
    m.header = header(type, device.wire_index.load(std::memory_order_relaxed), epoch);
    m.time_ns = now_ns();
    return m;
}

// So late, a turn was granted while the process was stopped (SIGSTOP, a frozen cgroup).
bool is_long_over(const wire::ClientPage& page) {
    constexpr uint64_t kLong = 250'000'000;
    const uint64_t deadline = page.deadline_ns.load(std::memory_order_relaxed);
    return deadline != wire::kNever && now_ns() > deadline + kLong;
}

// Nobody submitted anything in this turn. An estimate of what still ran would not do: kernels take as long as they
// like.
bool is_unused(Device& device, const wire::ClientPage& page, uint32_t epoch) {
    return device.begun.load() != epoch && is_long_over(page) &&
           device.pacer.launches() == device.launches_before.load(std::memory_order_relaxed);
}

void tell_stopped(Device& device, uint32_t epoch, uint64_t inflight_ns) {
    // The launching thread or the watcher, whichever is first. The other one may say what follows, so it waits until
    // this is said.
    const std::lock_guard telling(device.telling);
    if (device.stop_told.exchange(epoch) == epoch) return;
    auto reason = StopReason(device.stop_reason.load(std::memory_order_relaxed));
    auto m = message(device, wire::MessageType::kStopped, epoch);
    m.reason = reason;
    m.tail_ns = inflight_ns;
    device.page.load(std::memory_order_acquire)->launches.store(device.pacer.launches(), std::memory_order_relaxed);
    if (reason == StopReason::kIdle) m.value = device.paused_ns.load(std::memory_order_relaxed);
    if (is_unused(device, *device.page.load(std::memory_order_acquire), epoch)) m.flags = wire::kUnused;
    // A holder that is stopped in the middle of its work will request the token again. The same message says so;
    // otherwise the daemon would believe the next holder to be alone. This also holds for a thread that waits for
    // memory, for which a turn ends.
    bool wants =
        reason == StopReason::kDeadline || reason == StopReason::kRevoked || device.awaiting_memory.load() > 0;
    if (wants) {
        m.flags |= wire::kStillRequests;
        device.request_epoch.store(epoch);
    }
    send(m);
}

struct Watch {
    wire::ClientPage* page = nullptr;
    Patience patience;
    uint64_t launches = 0;  // as of the last look
    uint64_t sample_at = 0, sampled_at = 0;
    uint32_t held = 0;       // epoch of the turn under way
    bool submitted = false;  // something, in this turn
    uint32_t draining = 0;   // epoch whose end is still to be told
    uint32_t drained = 0;    // epoch whose end was told last
    uint64_t asked = 0;      // when the connection was last looked at
    bool agreed = false;     // it keeps to what was agreed
    uint64_t random = now_ns() | 1;
};

void tell_progress(Device& device, wire::ClientPage& page, const Watch& watch) {
    const Pacer::Progress progress = device.pacer.progress();
    page.launches.store(watch.launches, std::memory_order_relaxed);
    page.work_ns.store(progress.work_ns, std::memory_order_relaxed);
    page.samples.store(progress.samples, std::memory_order_relaxed);
    page.busy_samples.store(progress.busy, std::memory_order_relaxed);
    page.awaited_samples.store(progress.awaited, std::memory_order_relaxed);
    page.tied.store(tied.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

// Up to a quarter longer or shorter, so that the samples never keep step with the program.
uint64_t jittered(uint64_t poll_ns, uint64_t& random) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return poll_ns - poll_ns / 4 + random % (poll_ns / 2 + 1);
}

// Samples of a program that launches all the time cost it something (Pacer::look()).
constexpr uint64_t kSampleLaunching = 1'000'000;
constexpr uint64_t kSamplesAtMost = 1000;  // that one stands for

uint64_t watch_holder(Device& device, wire::ClientPage& page, uint32_t epoch, Watch& watch) {
    constexpr auto relaxed = std::memory_order_relaxed;
    const Patience::Terms terms{page.idle_ns.load(relaxed), page.idle_most_ns.load(relaxed)};
    const uint64_t poll = std::max<uint64_t>(page.poll_ns.load(relaxed), kPollAtLeast);
    const uint64_t began = now_ns();
    const uint64_t launches = device.pacer.launches();
    const bool launched = launches != std::exchange(watch.launches, launches);
    if (watch.held != epoch) {
        watch.held = epoch;
        watch.submitted = false;
        watch.sample_at = watch.sampled_at = began;
        watch.patience.begins(began, device.wanted_at.exchange(0), terms);
    }
    const bool in_copy = device.waits.in_copy();
    watch.submitted = watch.submitted || launched || in_copy;
    // Looks between two samples have another reason, such as the end of the turn, and would count that reason
    // twice.
    const bool sampling = watch.submitted && began >= watch.sample_at;
    const bool waited = device.waits.look(began);
    const Pacer::Look look = in_copy ? device.pacer.look_at_marks() : device.pacer.look(sampling);
    const uint64_t now = now_ns();
    const bool awaited = device.waits.look(now) || waited || look.held_up;
    if (sampling) {
        // It stands for the time since the last one: a look may be held up in the driver by the very thread that
        // waits, and samples are taken more often while no thread launches.
        const uint64_t since = now - std::exchange(watch.sampled_at, now);
        device.pacer.sample(look, awaited, std::clamp<uint64_t>((since + poll / 2) / poll, 1, kSamplesAtMost));
        watch.sample_at = now + jittered(launched ? std::max(poll, kSampleLaunching) : poll, watch.random);
    }
    tell_progress(device, page, watch);
    // A thread that was just granted the token may take a while to wake; it is not idle.
    if (look.inflight || launched || device.waiting.load() > 0)
        watch.patience.active(now, terms);
    else if (watch.patience.pauses(now, terms)) {
        // Looks are seldom, and one may be held up in the driver by the very thread that waits for the work.
        const uint64_t active_at = std::max(watch.patience.active_at(), device.waits.last(now));
        device.paused_ns.store(now - std::min(now, active_at), relaxed);
        device.wanted_at.store(0);
        stop_holding(device, StopReason::kIdle, 0);
        return 0;
    }
    uint64_t sleep = jittered(poll, watch.random);
    if (watch.sample_at > now) sleep = std::min(sleep, watch.sample_at - now);
    const uint64_t deadline = page.deadline_ns.load(relaxed);
    if (deadline != wire::kNever) {
        if (now + look.inflight >= deadline) {
            stop_holding(device, StopReason::kDeadline, look.inflight);
            return 0;
        }
        sleep = std::min(sleep, deadline - look.inflight - now);
    }
    return sleep;
}

// An alarm from before this turn is over: the client that raised it has had its turn.
void begins(Device& device, uint32_t epoch) {
    device.begun.store(epoch);
    if (const wire::DevicePage* shared = device.shared.load(std::memory_order_acquire))
        device.urgent_seen.store(shared->urgent.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

// A thread that waits for the token.
class Wanting {
  public:
    explicit Wanting(Device& device) : device_(device), waiting_(&device.waits) {
        device_.waiting.fetch_add(1);
        uint64_t none = 0;
        device_.wanted_at.compare_exchange_strong(none, now_ns());
    }
    ~Wanting() { device_.waiting.fetch_sub(1); }
    Wanting(const Wanting&) = delete;
    Wanting& operator=(const Wanting&) = delete;

  private:
    Device& device_;
    const Waiting waiting_;
};

// How long the daemon may still be silent to one that has waited for it since then; kNever if it never says that it
// is there.
uint64_t until_silence(const wire::ClientPage& page, uint64_t since_ns) {
    const uint64_t heard = page.heard_ns.load(std::memory_order_acquire);
    if (heard == 0) return wire::kNever;
    const uint64_t now = now_ns(), end = std::max(since_ns, std::min(heard, now)) + wire::kSilence;
    return end > now ? end - now : 0;
}

// Since when it matters to it whether the daemon is silent; kNever if it does not.
uint64_t listens_since(const Device& device, const wire::ClientPage& page, TokenState state) {
    if (state == TokenState::kRun) return page.listens.load(std::memory_order_acquire) != 0 ? 0 : wire::kNever;
    const uint64_t wanted = device.waiting.load() > 0 ? device.wanted_at.load() : 0;
    return wanted != 0 ? wanted : wire::kNever;
}

// The part of the daemon while it is silent: turns by the clock. Returns how long nothing changes.
uint64_t take_agreed_turn(Device& device) {
    constexpr auto relaxed = std::memory_order_relaxed;
    wire::ClientPage& agreed = device.agreed;
    const wire::AgreedPart part = wire::agreed_part(agreed.agreed.load(relaxed));
    const uint64_t now = now_ns(), at = now % wire::kAgreedPeriod;
    const bool always = part.to_ns - part.from_ns == wire::kAgreedPeriod;
    uint64_t inflight = device.pacer.poll();
    if (device.pacer.stuck()) inflight = 0;  // it may wait for the very thread that waits here
    uint32_t word = agreed.token.load();
    const bool runs = wire::token_state(word) == TokenState::kRun;
    // What is in flight when the part ends runs into the next one's.
    if (always || (at >= part.from_ns && at + inflight < part.to_ns)) {
        const uint64_t left = always ? wire::kNever : part.to_ns - at;
        agreed.deadline_ns.store(always ? wire::kNever : now + left, relaxed);
        if (!runs) {
            const uint32_t epoch = wire::next_epoch(wire::token_epoch(word));
            agreed.token.store(wire::token_word(epoch, TokenState::kRun), std::memory_order_release);
            futex_wake_all(agreed.token);
        }
        return always ? left : left - inflight;
    }
    if (runs) agreed.token.store(wire::token_word(wire::token_epoch(word), TokenState::kBlocked));
    return at < part.from_ns ? part.from_ns - at : wire::kAgreedPeriod - at + part.from_ns;
}

uint64_t watch_agreement(Device& device, Watch& watch) {
    constexpr uint64_t kLook = 20'000'000;  // for the daemon
    const uint64_t now = now_ns();
    if (const wire::ClientPage* daemons = device.silent.load()) {
        const uint64_t heard = daemons->heard_ns.load(std::memory_order_acquire);
        if (heard > device.agreed.heard_ns.load(std::memory_order_relaxed)) {
            return_to_daemon(device);
            return 0;
        }
        // One that was only starved for a moment is not worth a word.
        if (now > heard && now - heard > 2 * wire::kSilence)
            say_once(Topic::kSilent, "the daemon does not answer: running on by the last shares until it does");
    }
    const uint64_t sleep = std::min(take_agreed_turn(device), kLook);
    if (now - watch.asked >= kPollWaiting) {
        watch.asked = now;
        if (!connected()) {
            if (device.silent.load()) lost();
            reconnect_beside();
        } else {
            device.looked_at.store(now_ns());
        }
    }
    return std::max(sleep, kPollAtLeast);
}

uint64_t watch_once(Device& device, Watch& watch) {
    wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
    if (&page == &device.unmanaged) {
        const bool joined = reconnect();
        device.looked_at.store(now_ns());
        return joined ? 0 : kReconnect;
    }
    if (&page == &device.agreed) {
        if (!std::exchange(watch.agreed, true)) watch.asked = 0;  // a successor of the daemon is there already
        return watch_agreement(device, watch);
    }
    watch.agreed = false;
    if (watch.page != &page) {
        const uint64_t random = watch.random;
        watch = {};
        watch.page = &page;
        watch.launches = device.pacer.launches();
        watch.random = random;
    }
    uint32_t word = page.token.load(std::memory_order_acquire);
    TokenState state = wire::token_state(word);
    uint32_t epoch = wire::token_epoch(word);
    uint64_t sleep = kPollWaiting;

    if (state == TokenState::kRevoked) {
        stop_holding(device, StopReason::kRevoked, device.pacer.poll());
        return 0;
    }
    // The launching thread may have reported the end itself, and the daemon may have answered before this thread
    // looked.
    uint32_t told = device.stop_told.load(std::memory_order_relaxed);
    if (state == TokenState::kStopping && watch.drained != epoch)
        watch.draining = epoch;
    else if (told && watch.drained != told)
        watch.draining = told;
    if (watch.draining) {
        uint64_t inflight = device.pacer.poll();
        bool again = watch.draining != epoch;  // granted anew: the old tail is part of the new hold
        bool lead = inflight <= page.lead_ns.load(std::memory_order_relaxed) ||
                    device.stop_reason.load(std::memory_order_relaxed) == uint32_t(StopReason::kRevoked);
        if (lead || again || device.pacer.stuck()) tell_stopped(device, watch.draining, inflight);
        if (inflight == 0 || again) {
            watch.launches = device.pacer.launches();
            device.launches_before.store(again ? UINT64_MAX : watch.launches, std::memory_order_relaxed);
            tell_progress(device, page, watch);
            send(message(device, wire::MessageType::kDrained, watch.draining));
            watch.drained = std::exchange(watch.draining, 0);
        } else {
            // One that was in the driver when the turn ended counts, too: a peer may have to make it as well.
            page.launches.store(device.pacer.launches(), std::memory_order_relaxed);
            sleep = kPollDraining;
        }
    } else if (state != TokenState::kRun) {
        device.launches_before.store(device.pacer.launches(), std::memory_order_relaxed);
    }
    if (state == TokenState::kRun) sleep = watch_holder(device, page, epoch, watch);
    if (const uint64_t since = listens_since(device, page, state); since != wire::kNever) {
        const uint64_t left = until_silence(page, since);
        if (left == 0 && keep_to_agreement(device)) return 0;
        sleep = std::min(sleep, left);
    }
    // Check also while the token is held: a lone program may never wait for anything, and would never join a
    // daemon that came back.
    if (uint64_t now = now_ns(); now - watch.asked >= kPollWaiting || sleep == kPollWaiting) {
        watch.asked = now;
        if (!connected()) {
            lost();
            return 0;
        }
        device.looked_at.store(now);
        swap_tend(device);
    }
    if (sleep == kPollDraining)
        sleep_ns(sleep);
    else if (sleep)
        futex_wait(page.token, word, sleep);
    return 0;
}

// What the watcher would do, where the system allows no thread for it: by those that wait, one at a time. A thread is
// tried each time, for the system may allow one by now.
void watch_meanwhile(Device& device, std::optional<Watch>& state) {
    constexpr uint64_t kStep = 1'000'000;
    start_watcher(device);
    if (device.watched.load()) return;
    if (device.watched_meanwhile.exchange(true)) return sleep_ns(kStep);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    own().cuThreadExchangeStreamCaptureMode(&mode);
    if (!state) state.emplace();
    const uint64_t ns = watch_once(device, *state);
    own().cuThreadExchangeStreamCaptureMode(&mode);
    device.watched_meanwhile = false;
    if (ns) sleep_ns(std::min(ns, kStep));
}

void* watch(void* argument) {
    auto& device = *static_cast<Device*>(argument);
    begin_own_thread("gemlet");
    Watch state;
    for (;;)
        if (uint64_t ns = watch_once(device, state)) sleep_ns(ns);
    return nullptr;
}

}  // namespace

bool wait_for_token(Device& device) {
    const Wanting wanting(device);
    std::optional<Watch> watching;
    for (;;) {
        if (is_barred()) return false;  // another thread ends the program: too late to submit anything
        wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
        uint32_t word = page.token.load(std::memory_order_acquire);
        uint32_t epoch = wire::token_epoch(word);
        switch (wire::token_state(word)) {
            case TokenState::kRun:
                // A thread that only woke up late begins its turn: otherwise one that always wakes up late would
                // never run.
                if (is_long_over(page)) {
                    stop_holding(device, StopReason::kDeadline, 0);
                    continue;
                }
                begins(device, epoch);
                return true;
            case TokenState::kParked: {
                uint32_t run = wire::token_word(epoch, TokenState::kRun);
                if (!page.token.compare_exchange_strong(word, run)) continue;
                // The flags were written before the token was parked, and stay until the next grant.
                if (auto* shared = device.raise.load(); shared && page.flags.load() & wire::kPageRaise)
                    shared->urgent.fetch_add(1);
                send(message(device, wire::MessageType::kTook, epoch));
                futex_wake_all(page.token);  // the watcher
                begins(device, epoch);
                return true;
            }
            case TokenState::kBlocked:
                if (&page == &device.agreed) break;  // the watcher grants, by the clock
                if (&page == &device.unmanaged) {    // strict: no daemon, no work
                    if (out_of_patience(device)) return false;
                } else if (device.request_epoch.exchange(epoch) != epoch) {
                    send(message(device, wire::MessageType::kRequest, epoch));
                }
                break;
            case TokenState::kRevoked:
            case TokenState::kStopping:
                break;  // the watcher tells the daemon, which then blocks, parks or grants
        }
        if (!device.watched.load(std::memory_order_relaxed)) [[unlikely]] {
            watch_meanwhile(device, watching);
            continue;
        }
        futex_wait(page.token, word, 100'000'000);
        if (device.waiting.load(std::memory_order_relaxed) > kWokenAtOnce && page.token.load() != word)
            futex_wake_all(page.token);  // the daemon woke some of them
        if (device.is_daemons(page) && !connected()) lost();
    }
}

bool daemon_is_silent(const Device& device, uint64_t since_ns) {
    const wire::ClientPage* page = device.page.load(std::memory_order_acquire);
    if (page == &device.agreed) return true;
    return device.is_daemons(*page) && until_silence(*page, since_ns) == 0;
}

void stop_holding(Device& device, StopReason reason, uint64_t inflight_ns) {
    wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
    if (&page == &device.unmanaged) return;
    uint32_t word = page.token.load(std::memory_order_acquire);
    uint32_t epoch = wire::token_epoch(word);
    if (&page == &device.agreed) {
        const uint32_t run = wire::token_word(epoch, TokenState::kRun);
        if (word == run) page.token.compare_exchange_strong(word, wire::token_word(epoch, TokenState::kBlocked));
        return;
    }
    for (;;) {
        TokenState state = wire::token_state(word);
        if (state != TokenState::kRun && state != TokenState::kRevoked) return;
        device.stop_reason.store(uint32_t(reason), std::memory_order_relaxed);
        if (page.token.compare_exchange_strong(word, wire::token_word(epoch, TokenState::kStopping))) break;
    }
    if (inflight_ns <= page.lead_ns.load(std::memory_order_relaxed)) tell_stopped(device, epoch, inflight_ns);
    futex_wake_all(page.token);  // the watcher follows the tail
}

void make_way(Device& device) {
    const wire::DevicePage* shared = device.shared.load(std::memory_order_acquire);
    if (!shared || device.raise.load(std::memory_order_relaxed)) return;
    const uint32_t urgent = shared->urgent.load(std::memory_order_relaxed);
    if (urgent == device.urgent_seen.load(std::memory_order_relaxed)) return;
    device.urgent_seen.store(urgent, std::memory_order_relaxed);  // once, whether the order comes or not
    const wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
    uint64_t now = now_ns();
    if (now < device.urgent_from.load(std::memory_order_relaxed)) return;
    const uint64_t until = now + kOrderComes;
    while (wire::token_state(page.token.load(std::memory_order_relaxed)) == TokenState::kRun) {
        if ((now = now_ns()) >= until) {
            device.urgent_from.store(now + kFalseAlarm, std::memory_order_relaxed);
            return;
        }
        step_aside();
    }
}

void check_deadline(Device& device, uint64_t inflight_ns, uint64_t ahead_ns) {
    const wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
    uint64_t deadline = page.deadline_ns.load(std::memory_order_relaxed);
    if (deadline != wire::kNever && now_ns() + inflight_ns + ahead_ns >= deadline)
        stop_holding(device, StopReason::kDeadline, inflight_ns);
}

bool is_counted(const Device& device) {
    return device.page.load(std::memory_order_acquire)->submissions.load(std::memory_order_relaxed) != 0;
}

void check_submissions(Device& device, uint64_t inflight_ns) {
    if (!is_counted(device)) [[likely]]
        return;
    const wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
    const uint64_t before = device.launches_before.load(std::memory_order_relaxed);
    if (device.pacer.launches() - before >= page.submissions.load(std::memory_order_relaxed))
        stop_holding(device, StopReason::kDeadline, inflight_ns);
}

void start_watcher(Device& device) {
    if (device.watched.exchange(true)) return;
    if (!start_own_thread(watch, &device)) device.watched = false;
}

}  // namespace gemlet::hook
