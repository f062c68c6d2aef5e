// A thread that takes the mutex again and again, and one that wants it now and then. Prints how often the latter was
// passed over: it waited when a round began, and did not have its turn before that round. Then whether a round is over
// while it has time left: before somebody waits, while, and after; and when its time is up.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "server/round.hpp"
#include "server/yielding_mutex.hpp"

int main() {
    constexpr uint64_t kLong = 60'000'000'000;
    constexpr int kTurns = 200;
    gemlet::server::YieldingMutex mutex(kLong);
    std::atomic<int> turns{0};
    std::atomic<long> rounds{0};
    long passed_over = 0;
    std::thread decides([&] {
        while (turns.load() < kTurns) {
            const int before = turns.load();
            const bool wanted = mutex.is_wanted();
            mutex.lock_after_others();
            std::lock_guard lock(mutex, std::adopt_lock);
            passed_over += wanted && turns.load() == before;
            ++rounds;
            const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
            while (std::chrono::steady_clock::now() < end) continue;
        }
    });
    for (int turn = 0; turn < kTurns; ++turn) {
        for (const long before = rounds.load(); rounds.load() == before;) std::this_thread::yield();
        std::lock_guard lock(mutex);
        ++turns;
    }
    decides.join();
    std::printf("%ld\n", passed_over);

    const gemlet::server::Round round(mutex, 10);
    mutex.lock();
    const bool before = round.is_over(9);
    std::thread waits([&] { std::lock_guard lock(mutex); });
    while (!mutex.is_wanted()) std::this_thread::yield();
    const bool meanwhile = round.is_over(9);
    mutex.unlock();
    waits.join();
    std::printf("%d %d %d %d\n", before, meanwhile, round.is_over(9), round.is_over(10));
}
