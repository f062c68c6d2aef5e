// How much of a device each group should get: t_i = clamp(level * weight_i, min_i, max_i), with the level at which
// the device is full. Max-min fairness with floors and caps: minima (.6, .2, .1) of three groups that want
// everything give (.6, .2, .2).
#pragma once

#include <vector>

namespace gemlet::arbiter {

struct Share {
    double min, max, weight;
    double cost = 1.0;  // fraction of the device that is taken while this one runs
    double target = 0.0;
    bool frozen = false;
};

// Fills in the targets so that the sum of cost * target is `capacity`, or less if all are at their maximum. Minima
// that do not fit are scaled down together.
void fill_to_level(std::vector<Share>& shares, double capacity);

}  // namespace gemlet::arbiter
