// How long Gemini thinks the next burst (or pause) of a client will be: the 90th percentile, or the maximum, of what
// was seen in the last seconds. Runs with only short gaps between them are also seen as one merged run.
#pragma once

#include <deque>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

class GeminiPredictor {
  public:
    enum class Mode : uint8_t { kPercentile90, kMaximum };

    // A gap longer than `merge_threshold` begins a new merged run; records older than `keep` are forgotten.
    explicit GeminiPredictor(Nanoseconds merge_threshold, Nanoseconds keep = 3'000'000'000,
                             Mode mode = Mode::kPercentile90)
        : merge_threshold_(merge_threshold), keep_(keep), mode_(mode) {}

    void record_start(Nanoseconds now);  // nothing if one is open
    void record_stop(Nanoseconds now);   // nothing if none is open
    void interrupt() { open_ = false; }  // the open one does not count
    void reset();

    Nanoseconds predict_plain(Nanoseconds now) { return predict(now, &Record::plain); }
    Nanoseconds predict_merged(Nanoseconds now) { return predict(now, &Record::merged); }

  private:
    struct Record {
        Nanoseconds at, plain, merged;
    };
    Nanoseconds predict(Nanoseconds now, Nanoseconds Record::* length);

    Nanoseconds merge_threshold_, keep_;
    Mode mode_;
    bool open_ = false, stopped_before_ = false;
    Nanoseconds start_ = 0, merged_start_ = 0, last_stop_ = 0;
    std::deque<Record> records_;
};

}  // namespace gemlet::arbiter
