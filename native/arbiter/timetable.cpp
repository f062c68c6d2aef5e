#include "arbiter/timetable.hpp"

#include <algorithm>
#include <numeric>

namespace gemlet::arbiter {
namespace {

constexpr int kSteps = 20;  // to find a factor

bool meet(const Wish& a, const Wish& b) {
    return std::any_of(a.devices.begin(), a.devices.end(), [&](size_t device) {
        return std::find(b.devices.begin(), b.devices.end(), device) != b.devices.end();
    });
}

class Table {
  public:
    Table(const std::vector<Wish>& wishes, const std::vector<Nanoseconds>& free_from)
        : wishes_(wishes), free_from_(free_from) {}

    // The earliest place for each, one wish after the other.
    std::vector<Slot> place(const std::vector<size_t>& order, const std::vector<Nanoseconds>& lengths) const {
        std::vector<Slot> slots;
        for (const size_t index : order) {
            if (lengths[index] <= 0) continue;
            Nanoseconds from = 0;
            for (const size_t device : wishes_[index].devices) from = std::max(from, free_from_[device]);
            for (bool moved = true; moved;) {
                moved = false;
                for (const Slot& other : slots) {
                    const bool overlaps = from < other.until && other.from < from + lengths[index];
                    if (!overlaps || !meet(wishes_[index], wishes_[other.wish])) continue;
                    from = other.until;
                    moved = true;
                }
            }
            slots.push_back({index, from, from + lengths[index], lengths[index]});
        }
        return slots;
    }

    void grow(std::vector<Slot>& slots, Nanoseconds cycle) const {
        for (Slot& slot : slots) {
            if (!wishes_[slot.wish].may_grow) continue;
            Nanoseconds until = cycle;
            for (const Slot& other : slots)
                if (other.from >= slot.until && meet(wishes_[slot.wish], wishes_[other.wish]))
                    until = std::min(until, other.from);
            slot.until = std::max(slot.until, until);
        }
    }

  private:
    const std::vector<Wish>& wishes_;
    const std::vector<Nanoseconds>& free_from_;
};

Nanoseconds end_of(const std::vector<Slot>& slots) {
    Nanoseconds end = 0;
    for (const Slot& slot : slots) end = std::max(end, slot.until);
    return end;
}

}  // namespace

std::vector<Slot> timetable(const std::vector<Wish>& wishes, const std::vector<Nanoseconds>& free_from,
                            Nanoseconds cycle, Nanoseconds shortest) {
    const Table table(wishes, free_from);
    std::vector<size_t> given(wishes.size());
    std::iota(given.begin(), given.end(), size_t{0});
    // The widest and longest first leaves the fewest holes, but who waited longest goes first if that does as well.
    std::vector<size_t> widest = given;
    std::stable_sort(widest.begin(), widest.end(), [&](size_t a, size_t b) {
        const auto size = [&](size_t i) { return wishes[i].share * static_cast<double>(wishes[i].devices.size()); };
        return size(a) > size(b);
    });
    std::vector<Slot> found;
    // Of the minima, then of what is wished beyond them.
    const auto attempt = [&](double minima, double beyond) {
        std::vector<Nanoseconds> lengths;
        for (const Wish& wish : wishes) {
            const double share = minima * wish.least + beyond * std::max(0.0, wish.share - wish.least);
            const auto length = static_cast<Nanoseconds>(share * static_cast<double>(cycle));
            lengths.push_back(length >= shortest ? length : 0);
        }
        for (const auto* order : {&given, &widest}) {
            std::vector<Slot> slots = table.place(*order, lengths);
            if (end_of(slots) > cycle) continue;
            found = std::move(slots);
            return true;
        }
        return false;
    };
    const auto largest = [](auto&& fits) {
        if (fits(1.0)) return;
        double low = 0.0, high = 1.0;
        for (int step = 0; step < kSteps; ++step) {
            const double middle = (low + high) / 2.0;
            (fits(middle) ? low : high) = middle;
        }
    };
    if (attempt(1.0, 0.0))
        largest([&](double factor) { return attempt(1.0, factor); });
    else
        largest([&](double factor) { return attempt(factor, 0.0); });
    std::sort(found.begin(), found.end(),
              [](const Slot& a, const Slot& b) { return a.from != b.from ? a.from < b.from : a.wish < b.wish; });
    table.grow(found, cycle);
    return found;
}

}  // namespace gemlet::arbiter
