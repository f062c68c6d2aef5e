#include "arbiter/observation.hpp"

#include <algorithm>

namespace gemlet::arbiter {
namespace {

constexpr double kSpan = 20e6;  // ns: beside others, promises are judged by what happened this lately
constexpr double kSpanMost = 400e6;
constexpr double kUnits = 8.0;  // ... or by this many kernels, if they are long: work is known when it is complete
constexpr double kSpanAlone = 200e6;
constexpr double kSpanOfHabit = 100e6;
constexpr double kSpanOfRanks = 500e6;
constexpr double kAlike = 2.0;  // times as long as a launch took alone on average, or as short
constexpr double kLearn = 0.2;  // weight of the last interval in what is learned
constexpr double kQueueingMost = 50e3;
// ns from a launch on an idle device until it runs, at most (4 to 5 us on an H200). What a client says of its work is
// not believed beyond that: a kernel may take longer than its estimate.
constexpr double kStarting = 6e3;
constexpr double kKeptUnsaid = 0.95;  // of what was found once, with each that is found
// Kernels of a program that run at the same moment, at most: what it claims beyond that is not so.
constexpr double kMostAtATime = 128.0;

// How much of the time two are busy beside each other that alone are so for kWorthTurns. At that part of looks that
// find work, those that find none weigh so much more that neither wins.
constexpr double kBusyBeside = 2.0 * Observation::kWorthTurns / (1.0 + Observation::kWorthTurns);
constexpr double kEmpty = kBusyBeside / (1.0 - kBusyBeside);  // 27

double factor(double time, double span) {
    return std::exp(-time / span);
}

}  // namespace

void Observation::say(const Progress& progress) {
    said_.work = std::max(said_.work, progress.work);
    said_.launches = std::max(said_.launches, progress.launches);
    said_.samples = std::max(said_.samples, progress.samples);
    said_.busy = std::max(said_.busy, progress.busy);
    said_.awaited = std::max(said_.awaited, progress.awaited);
}

Rates Observation::take(Nanoseconds time, double samples) {
    Rates r;
    r.time = static_cast<double>(std::max<Nanoseconds>(time, 0));
    r.samples = static_cast<double>(said_.samples - taken_.samples);
    r.busy = std::min(static_cast<double>(said_.busy - taken_.busy), r.samples);
    r.awaited = std::min(static_cast<double>(said_.awaited - taken_.awaited), r.busy);
    r.work = std::min(static_cast<double>(said_.work - taken_.work), kMostAtATime * r.time);
    r.launches = static_cast<double>(said_.launches - taken_.launches);
    taken_ = said_;
    // More than it can have done since: kernels that have been running for longer.
    if (r.work > 0.0) unsaid_ = std::max(r.work - r.time, kKeptUnsaid * unsaid_);
    for (double* sum : {&r.samples, &r.busy, &r.awaited}) *sum *= samples;
    if (r.samples > 0.0) {
        const double found = 1.0 - (1.0 + kEmpty) * (r.samples - r.busy) / r.samples;
        filled_ = std::max(0.0, filled_ + found * r.samples);
        filled_time_ = std::max(0.0, filled_time_ + found * r.time);
    }
    return r;
}

double Observation::span() const {
    const Rates& r = beside_.launches > 0.0 ? beside_ : alone_;
    const double unit = r.launches > 0.0 ? r.work / r.launches : 0.0;
    return std::clamp(kUnits * unit, kSpan, kSpanMost);
}

void Observation::ran_alone(const Rates& rates) {
    if (rates.time <= 0.0) return;
    happened(rates);
    alone_.decay(factor(rates.time, kSpanAlone));
    alone_.add(rates);
    if (rates.freely) {
        freely_.decay(factor(rates.time, kSpanAlone));
        freely_.add(rates);
    }
    // When turns begin, what others have in their queues runs on for a while, and its own work waits for that.
    if (rates.disturbed) return;
    undisturbed_.decay(factor(rates.time, kSpanAlone));
    undisturbed_.add(rates);
    if (undisturbed_.samples < kEnough || undisturbed_.launches <= 0.0) return;
    const double excess = undisturbed_.busy_part() * undisturbed_.time - undisturbed_.work;
    const double each = std::clamp(excess / undisturbed_.launches, 0.0, kQueueingMost);
    queueing_ += kLearn * (each - queueing_);
    queueing_seen_ = true;
}

void Observation::ran_beside(const Rates& rates) {
    if (rates.time <= 0.0) return;
    happened(rates);
    beside_.decay(factor(rates.time, span()));
    beside_.add(rates);
    together_.decay(factor(rates.time, kSpanOfRanks));
    together_.add(rates);
}

void Observation::happened(const Rates& rates) {
    lately_.decay(factor(rates.time, span()));
    lately_.add(rates);
    habit_.decay(factor(rates.time, kSpanOfHabit));
    habit_.add(rates);
    recently_.decay(factor(rates.time, kSpanOfRanks));
    recently_.add(rates);
}

// What a host waited beyond the time that its own work took.
double Observation::stalled(const Rates& rates) const {
    const double awaited = rates.awaited_part();
    const double each = queueing_seen_ || presumes_queueing_ ? queueing_ : 0.0;
    const double own = rates.work_rate() + each * rates.launch_rate();
    // As much of its own work as did not fit into the time in which nobody waited was done while somebody did.
    return awaited - std::max(0.0, own - (rates.busy_part() - awaited));
}

double Observation::going() const {
    return 1.0 - std::clamp(stalled(lately_), 0.0, 1.0);
}

bool Observation::unlike_alone() const {
    if (alone_.launches <= 0.0 || beside_.launches <= 0.0) return false;
    const double alone = alone_.work * beside_.launches, beside = beside_.work * alone_.launches;
    return alone > kAlike * beside || beside > kAlike * alone;
}

double Observation::use_alone() const {
    if (!known_alone()) return 1.0;
    const double busy = alone_.busy_part();
    return std::min(busy, std::max(alone_.work_rate(), busy - kStarting * alone_.launch_rate()));
}

double Observation::speed() const {
    const double awaited = beside_.awaited_part();
    if (awaited <= 0.0) return 1.0;
    double stalled = this->stalled(beside_);
    // Alone, it would have waited for that much work this long.
    if (freely_.samples >= kEnough && freely_.work > 0.0 && !unlike_alone()) {
        const double usual = freely_.awaited_part() / freely_.work_rate();
        stalled = std::min(stalled, awaited - usual * beside_.work_rate());
    }
    return 1.0 - std::clamp(stalled, 0.0, 1.0);
}

double Observation::speed(double total, double capacity) const {
    if (total <= capacity) return speed();
    Observation scaled = *this;
    scaled.beside_.work *= capacity / total;
    return scaled.speed();
}

}  // namespace gemlet::arbiter
