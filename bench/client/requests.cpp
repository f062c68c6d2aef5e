// Clients whose work arrives when it likes (open loop): a request's latency counts from when it was to begin,
// whatever kept it from beginning then.
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "held.hpp"
#include "program.hpp"

// A server with one thread: Poisson arrivals, each request --kernels kernels and a wait for them.
int latency(const Options& o) {
    Program p(o);
    std::mt19937_64 random(o.seed);
    for (int i = 0; i < 20; ++i) {
        p.launch(o.kernel_us);
        p.synchronize();
    }
    std::vector<Completed> log;
    log.reserve(size_t(o.rate * o.seconds * 2) + 64);
    const uint64_t begin = wait_for_start(o), end = begin + uint64_t(o.seconds * 1e9);
    double arrival = double(begin);
    size_t served = 0;
    for (;;) {
        // By hand, not std::exponential_distribution: the same arrivals with every library.
        const double u = double(random() >> 11) * 0x1p-53;
        arrival += -std::log1p(-u) / o.rate * 1e9;
        if (arrival >= double(end)) break;
        sleep_until(uint64_t(arrival));
        if (now_ns() < end) {
            for (int i = 0; i < o.kernels; ++i) p.launch_and_pause();
            p.synchronize();
            ++served;
        }
        // One that was never served counts with what it had waited: the latency it would have had is longer.
        const uint64_t now = now_ns();
        log.push_back({now - begin, o.kernel_us * o.kernels * 1000 * double(served), double(now) - arrival});
    }
    write_log(o.file, log);
    std::printf("{\"requests\": %zu, \"unserved\": %zu, \"work_s\": %.6f}\n", log.size(), log.size() - served,
                o.kernel_us * o.kernels * double(served) / 1e6);
    return 0;
}

namespace {

constexpr size_t kInFlight = 64;  // bursts; of 10 launches they fit the driver's queue of 1022

// Bursts that are submitted, and the thread that sees them complete while the other is held back in a launch.
class Completions {
  public:
    Completions(const Options& o, const Program& p, uint64_t begin) : o_(o), begin_(begin) {
        idle_.resize(kInFlight);
        for (auto& e : idle_) CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
        thread_ = std::thread([this, &p] {
            CHECK(cuCtxSetCurrent(p.context()));
            watch();
        });
    }

    void submitted(Program& p, uint64_t intended) {
        CUevent event;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return !idle_.empty(); });
            event = idle_.back();
            idle_.pop_back();
        }
        p.batch(1);
        CHECK(cuEventRecord(event, p.stream()));
        std::lock_guard lock(mutex_);
        pending_.push_back({event, intended});
        changed_.notify_all();
    }

    std::vector<Completed> finish() {
        {
            std::lock_guard lock(mutex_);
            ended_ = true;
            changed_.notify_all();
        }
        thread_.join();
        return std::move(log_);
    }

  private:
    struct Pending {
        CUevent event;
        uint64_t intended;
    };

    void watch() {
        for (;;) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return !pending_.empty() || ended_; });
            if (pending_.empty()) return;
            const Pending next = pending_.front();
            lock.unlock();
            CHECK(cuEventSynchronize(next.event));
            const uint64_t now = now_ns();
            const double work = o_.kernel_us * 1000 * o_.batch * double(log_.size() + 1);
            log_.push_back({now - begin_, work, double(now - next.intended)});
            lock.lock();
            pending_.pop_front();
            idle_.push_back(next.event);
            changed_.notify_all();
        }
    }

    const Options& o_;
    const uint64_t begin_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<CUevent> idle_;
    std::deque<Pending> pending_;
    bool ended_ = false;
    std::vector<Completed> log_;  // of the thread until it ended
    std::thread thread_;
};

}  // namespace

// One burst each 1/rate seconds, submitted without waiting for those before. A program that was held back catches
// up at once.
int burst(const Options& o) {
    Program p(o);
    Held held(o.memory_mib, o.rewrite_mib, 0);
    p.launch(1);
    p.synchronize();
    const uint64_t begin = wait_for_start(o), end = begin + uint64_t(o.seconds * 1e9);
    Completions completions(o, p, begin);
    const auto due = size_t(o.seconds * o.rate);
    size_t submitted = 0;
    for (; submitted < due; ++submitted) {
        const uint64_t intended = begin + uint64_t(double(submitted) / o.rate * 1e9);
        if (now_ns() >= end) break;
        sleep_until(intended);
        completions.submitted(p, intended);
        if (o.rewrite_mib) held.rewrite_all(p.stream());  // behind the burst, whose latency it does not add to
    }
    const std::vector<Completed> log = completions.finish();
    write_log(o.file, log);
    std::printf("{\"due\": %zu, \"submitted\": %zu, \"work_s\": %.6f, \"wrong\": %zu}\n", due, submitted,
                log.empty() ? 0.0 : log.back().work / 1e9, held.wrong());
    return 0;
}
