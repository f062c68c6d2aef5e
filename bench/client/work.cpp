// A client that always has something to do: batches back to back, a few of them queued.
#include <algorithm>
#include <cstdio>
#include <deque>

#include "held.hpp"
#include "program.hpp"

int work(const Options& o) {
    Program p(o);
    Held held(o.memory_mib, o.rewrite_mib, o.dead);
    if (o.graph) p.make_graph();
    const int marks = o.graph ? 1 : o.marks;
    if (marks < 1 || o.batch % marks != 0) {
        std::fprintf(stderr, "client: --batch must be a multiple of --marks\n");
        return 2;
    }
    std::vector<CUevent> idle(size_t(o.depth * marks));
    for (auto& e : idle) CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    std::deque<CUevent> pending;
    p.launch(1);
    p.synchronize();
    std::vector<Completed> log;
    log.reserve(1u << 20);
    const double mark_ns = o.kernel_us * 1000 * o.batch / marks;
    const uint64_t begin = wait_for_start(o), end = begin + uint64_t(o.seconds * 1e9);
    auto take = [&] {
        CHECK(cuEventSynchronize(pending.front()));
        const uint64_t now = now_ns();
        log.push_back({now > begin ? now - begin : 0, mark_ns * double(log.size() + 1)});
        idle.push_back(pending.front());
        pending.pop_front();
    };
    double in_phase = 0;
    while (now_ns() < end) {
        // Room for a whole batch first, so that its parts follow each other as closely as in one without marks.
        while (idle.size() < size_t(marks)) take();
        for (int i = 0; i < marks; ++i) {
            p.batch(marks);
            CHECK(cuEventRecord(idle.back(), p.stream()));
            pending.push_back(idle.back());
            idle.pop_back();
        }
        if (o.rewrite_mib) held.rewrite(p.stream());
        held.end_of_iteration();
        // Phases are counted in work, not in time, so a phase that had to wait for the device is not shorter.
        in_phase += o.kernel_us * o.batch * 1e-6;
        if (o.cpu > 0 && in_phase >= o.phase) {
            in_phase = 0;
            while (!pending.empty()) take();
            sleep_until(now_ns() + uint64_t(o.phase * 1e9 * o.cpu / (1 - o.cpu)));
        }
    }
    while (!pending.empty()) take();
    write_log(o.file, log);
    const auto in_time = std::count_if(log.begin(), log.end(), [&](auto& c) { return c.at <= end - begin; });
    std::printf("{\"work_s\": %.6f, \"seconds\": %.6f, \"marks\": %td, \"wrong\": %zu}\n",
                mark_ns * double(in_time) / 1e9, o.seconds, in_time, held.wrong());
    return 0;
}
