#include "arbiter/policies/gemini_predictor.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gemlet::arbiter {

void GeminiPredictor::record_start(Nanoseconds now) {
    if (open_) return;
    open_ = true;
    start_ = now;
    if (!stopped_before_ || now - last_stop_ > merge_threshold_) merged_start_ = now;
}

void GeminiPredictor::record_stop(Nanoseconds now) {
    if (!open_) return;
    open_ = false;
    stopped_before_ = true;
    last_stop_ = now;
    records_.push_back({now, now - start_, now - merged_start_});
}

void GeminiPredictor::reset() {
    open_ = stopped_before_ = false;
    records_.clear();
}

Nanoseconds GeminiPredictor::predict(Nanoseconds now, Nanoseconds Record::* length) {
    while (!records_.empty() && now - records_.front().at > keep_) records_.pop_front();
    if (records_.empty()) return 0;
    std::vector<Nanoseconds> lengths;
    lengths.reserve(records_.size());
    for (const Record& record : records_) lengths.push_back(record.*length);
    if (mode_ == Mode::kMaximum) return *std::max_element(lengths.begin(), lengths.end());
    const auto index = static_cast<ptrdiff_t>(std::lround(0.9 * static_cast<double>(lengths.size() - 1)));
    std::nth_element(lengths.begin(), lengths.begin() + index, lengths.end());
    return lengths[static_cast<size_t>(index)];
}

}  // namespace gemlet::arbiter
