#include "arbiter/policies/water_level.hpp"

#include <algorithm>
#include <cmath>

namespace gemlet::arbiter {

void fill_to_level(std::vector<Share>& shares, double capacity) {
    // Less counts as this: beside such weights alone the level would be infinite, and everybody at its maximum.
    constexpr double kLeast = 1e-100;
    double minima = 0.0;
    for (const Share& s : shares) minima += s.cost * s.min;
    const double scale = minima > capacity ? capacity / minima : 1.0;
    for (Share& s : shares) {
        s.min *= scale;
        s.weight = std::max(s.weight, kLeast);
        s.cost = std::max(s.cost, kLeast);
        s.frozen = false;
    }
    // Each pass shares what is left by weight, then freezes the groups that hit a bound on the side that errs more
    // in sum (the flexible-box algorithm). Ends after as many passes as there are shares at worst, after two or
    // three mostly.
    for (size_t pass = 0; pass <= shares.size(); ++pass) {
        double left = capacity, weights = 0.0, error = 0.0;
        for (const Share& s : shares) {
            if (s.frozen)
                left -= s.cost * s.target;
            else
                weights += s.cost * s.weight;
        }
        if (weights <= 0.0) return;
        const double level = std::max(left, 0.0) / weights;
        for (Share& s : shares) {
            if (s.frozen) continue;
            s.target = std::clamp(level * s.weight, s.min, s.max);
            error += s.cost * (s.target - level * s.weight);
        }
        if (std::abs(error) < 1e-12) return;
        for (Share& s : shares) {
            if (s.frozen) continue;
            const double moved = s.target - level * s.weight;
            s.frozen = error > 0.0 ? moved > 0.0 : moved < 0.0;
        }
    }
}

}  // namespace gemlet::arbiter
