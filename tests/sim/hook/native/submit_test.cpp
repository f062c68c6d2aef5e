// When a pause ends a turn, when a thread counts as waiting, and which samples of a kernel are believed. Time is
// given, not read. Exits 1 with the first thing that is wrong.
#include <memory>

#include "check.h"
#include "hook/submit/estimate.h"
#include "hook/submit/patience.h"
#include "hook/submit/sample_budget.h"
#include "hook/submit/waits.h"

using namespace gemlet::hook;

namespace gemlet::hook {
Waits* waits_here() {
    return nullptr;
}
}  // namespace gemlet::hook

constexpr uint64_t kUs = 1'000, kMs = 1'000'000;
constexpr Patience::Terms kContended{100 * kUs, 2 * kMs};
constexpr Patience::Terms kAlone{5 * kMs, 5 * kMs};

// A program under terms, sampled every `poll`.
struct Program {
    Patience patience;
    Patience::Terms terms;
    uint64_t now = kMs, poll = 50 * kUs;

    explicit Program(Patience::Terms t) : terms(t) { patience.begins(now, 0, terms); }
    void works(uint64_t ns) {
        for (const uint64_t end = now + ns; now < end;) patience.active(now += poll, terms);
    }
    // Then it submits again. True if that ended its turn; the next one begins `grant` later.
    bool pauses(uint64_t ns, uint64_t grant = 3 * kMs) {
        const uint64_t end = now + ns;
        while ((now += poll) < end)
            if (patience.pauses(now, terms)) {
                patience.begins(end + grant, end, terms);
                now = end + grant;
                return true;
            }
        patience.active(now = end, terms);
        return false;
    }
};

static void short_pauses_are_granted_and_long_ones_are_not() {
    Program p(kContended);
    for (int i = 0; i < 100; ++i) {
        p.works(kMs);
        CHECK(!p.pauses(400 * kUs));
    }
    CHECK(p.pauses(2500 * kUs));  // longer than any that is granted
    int granted = 0;
    Program q(kContended);
    for (int i = 0; i < 100; ++i) {
        q.works(kMs);
        granted += !q.pauses(1500 * kUs);
    }
    CHECK(granted >= 1 && granted < 10);  // until the average says so
    CHECK(q.patience.average() > Patience::kShort);
}

static void pauses_that_ended_a_turn_count_for_what_the_program_did() {
    Program p(kContended);
    for (int i = 0; i < 40; ++i) {
        p.works(kMs);
        p.pauses(1500 * kUs);
    }
    // Its pauses become short: they end its turns at first, and are still seen to be short.
    int ended = 0;
    for (int i = 0; i < 100; ++i) {
        p.works(kMs);
        ended += p.pauses(250 * kUs, 30 * kMs);
    }
    CHECK(ended > 0 && ended < 30);
    CHECK(!p.pauses(250 * kUs));
}

static void work_is_no_pause_however_rarely_it_is_looked_at() {
    Program p(kContended);
    p.poll = 900 * kUs;
    p.works(kMs * 1000);
    CHECK(p.patience.average() == 0);
    // The same holds for a turn that ended for another reason: the program waited for the token, or for its work
    // in flight.
    for (int i = 0; i < 20; ++i) {
        p.now += 50 * kMs;
        p.patience.begins(p.now, p.now - 20 * kMs, p.terms);
    }
    CHECK(p.patience.average() == 0);
}

static void a_pause_counts_for_no_more_than_twice_what_is_granted() {
    Program p(kAlone);
    for (int i = 0; i < 100; ++i) {
        p.works(kMs);
        p.pauses(10'000 * kMs);
    }
    CHECK(p.patience.average() <= 2 * kAlone.idle_most);
    p.terms = kContended;
    for (int i = 0; i < 30; ++i) {
        p.works(kMs);
        p.pauses(200 * kUs);
    }
    CHECK(!p.pauses(200 * kUs));
    CHECK(p.patience.average() < Patience::kShort);
}

static void threads_that_wait() {
    Waits w;
    uint64_t now = 10 * Waits::kUnseen;
    CHECK(w.look(now));  // never seen to wait
    {
        const Waiting one(&w);
        const Waiting two(&w);
        CHECK(w.look(now += kMs));
    }
    CHECK(!w.look(now += kMs));
    {
        const Waiting between_two_samples(&w);
    }
    CHECK(!w.look(now += Waits::kUnseen - kMs));
    CHECK(!w.look(now += Waits::kUnseen - kMs));
    CHECK(w.look(now += kMs));  // not for a second
    w.not_ready(now);
    CHECK(w.look(now += Waits::kPolling - 1));
    CHECK(!w.look(now += 1));
    CHECK(!w.look(now += Waits::kUnseen - 2));
    CHECK(w.look(now += 1));
    const Waiting nowhere(nullptr);
}

static void samples_of_a_shared_device() {
    const auto table = std::make_unique<Estimates>();
    const uint64_t key = Estimates::key(&kUs, 7);
    const auto ns = [&] { return uint64_t(table->find(key).nanoseconds); };
    CHECK(Estimates::count(table->find(key), key));
    table->learn(key, 900 * kUs, true, true);
    CHECK(ns() == 900 * kUs);  // the first is all there is
    table->learn(key, 2 * kMs, true, true);
    CHECK(ns() == 900 * kUs);  // submitted before the first was known
    table->learn(key, 300 * kUs, false, true);
    CHECK(ns() == 300 * kUs);
    const uint16_t left = table->find(key).until_sample = 50;
    table->learn(key, 5 * kMs, false, true);
    CHECK(ns() == 300 * kUs && table->find(key).until_sample == left);
    table->learn(key, 5 * kMs, false, false);
    CHECK(ns() > 2 * kMs);  // it has grown indeed
}

static void kernels_that_were_never_timed() {
    const auto table = std::make_unique<Estimates>();
    // Not an address of this process: at some, one of 65 kernels has the place of another.
    const auto key = [](uint64_t grid) { return Estimates::key(reinterpret_cast<const void*>(0x401000), grid); };
    auto& fresh = table->find(key(0));
    Estimates::count(fresh, key(0));
    CHECK(table->expected(fresh) == Estimates::kUnknown);
    for (uint64_t grid = 1; grid <= 64; ++grid) {
        auto& known = table->find(key(grid));
        CHECK(Estimates::count(known, key(grid)));
        table->learn(key(grid), 3 * kMs, true, false);  // with its module
        CHECK(Estimates::count(known, key(grid)) && Estimates::doubted(known));
        table->learn(key(grid), 5 * kUs, false, false);
    }
    CHECK(table->expected(table->find(key(1))) == 5 * kUs);
    CHECK(table->expected(fresh) < 6 * kUs && table->expected(fresh) > 4 * kUs);
    table->learn(key(1), 200 * kMs, false, false);  // it waited for a peer
    CHECK(table->expected(fresh) < 6 * kUs);
    for (int i = 0; i < 1000; ++i) table->learn(key(2), 2 * kMs, false, false);
    CHECK(table->expected(fresh) == Estimates::kUnknown);  // nobody waits longer for what is not known
}

static void an_estimate_that_is_doubted_is_timed_again() {
    const auto table = std::make_unique<Estimates>();
    const uint64_t key = Estimates::key(&kUs, 7);
    auto& entry = table->find(key);
    for (int launches = 0; launches < 100; ++launches)
        if (Estimates::count(entry, key)) table->learn(key, 5 * kUs, launches == 0, false);
    CHECK(!Estimates::doubted(entry));
    table->learn(key, 100 * kMs, false, false);
    CHECK(Estimates::count(entry, key) && Estimates::doubted(entry));
}

static void few_kernels_are_timed() {
    SampleBudget budget;
    uint64_t now = 70 * kMs;
    for (uint64_t i = 0; i < SampleBudget::kAtOnce; ++i) CHECK(budget.take(now));
    CHECK(!budget.take(now));
    uint64_t taken = 0;
    for (int i = 0; i < 10'000; ++i) taken += budget.take(now += 100 * kUs);
    CHECK(taken == 1'000 * kMs / SampleBudget::kEach);
    now += 60'000 * kMs;  // nothing is saved up beyond the first
    taken = 0;
    for (int i = 0; i < 1'000; ++i) taken += budget.take(now);
    CHECK(taken == SampleBudget::kAtOnce);
}

int main() {
    short_pauses_are_granted_and_long_ones_are_not();
    pauses_that_ended_a_turn_count_for_what_the_program_did();
    work_is_no_pause_however_rarely_it_is_looked_at();
    a_pause_counts_for_no_more_than_twice_what_is_granted();
    threads_that_wait();
    samples_of_a_shared_device();
    kernels_that_were_never_timed();
    an_estimate_that_is_doubted_is_timed_again();
    few_kernels_are_timed();
}
