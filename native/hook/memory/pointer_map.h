// What this process allocated, by pointer. Sharded and open-addressed: an insert and its removal take about 60 ns
// together and never look at other entries; growing happens under one shard's lock only.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>

namespace gemlet::hook {

// `Value` is trivially copyable; 0 is not a valid key.
template <class Value>
class PointerMap {
  public:
    // The value that was there before, if the key was taken.
    std::optional<Value> put(uint64_t key, const Value& value) {
        Shard& shard = shard_of(key);
        std::lock_guard lock(shard.mutex);
        std::optional<Value> before;
        if (Slot* slot = shard.find(key)) {
            before = slot->value;
            slot->value = value;
        } else {
            shard.insert(key, value);
        }
        return before;
    }

    std::optional<Value> take(uint64_t key) {
        Shard& shard = shard_of(key);
        std::lock_guard lock(shard.mutex);
        Slot* slot = shard.find(key);
        if (!slot) return std::nullopt;
        Value value = slot->value;
        shard.erase(slot);
        return value;
    }

    // Runs `change(value)` on the entry, made from `initial` if there is none; drops it if `change` returns false.
    template <class Change>
    void edit(uint64_t key, const Value& initial, Change&& change) {
        Shard& shard = shard_of(key);
        std::lock_guard lock(shard.mutex);
        Slot* slot = shard.find(key);
        if (!slot) slot = shard.insert(key, initial);
        if (!change(slot->value)) shard.erase(slot);
    }

    // Removes every entry for which `wanted(value)` holds and hands it to `each(key, value)`, outside all locks.
    template <class Wanted, class Each>
    void take_all(Wanted&& wanted, Each&& each) {
        for (Shard& shard : shards_)
            while (auto slot = shard.take_first(wanted)) each(slot->key, slot->value);
    }

  private:
    struct Slot {
        uint64_t key;
        Value value;
    };

    static uint64_t mix(uint64_t key) {
        key ^= key >> 32;
        key *= 0x9e3779b97f4a7c15u;
        return key ^ key >> 29;
    }

    struct alignas(64) Shard {
        std::mutex mutex;
        Slot* slots = nullptr;
        size_t capacity = 0;  // a power of two
        size_t used = 0;

        size_t home(uint64_t key) const { return mix(key) >> 8 & (capacity - 1); }

        Slot* find(uint64_t key) {
            if (used == 0) return nullptr;
            for (size_t i = home(key); slots[i].key; i = (i + 1) & (capacity - 1))
                if (slots[i].key == key) return &slots[i];
            return nullptr;
        }

        Slot* insert(uint64_t key, const Value& value) {
            if (used * 4 >= capacity * 3) grow();
            size_t i = home(key);
            while (slots[i].key) i = (i + 1) & (capacity - 1);
            slots[i] = {key, value};
            ++used;
            return &slots[i];
        }

        // Moves later entries of the same run back, so that no tombstone is needed.
        void erase(Slot* slot) {
            size_t hole = static_cast<size_t>(slot - slots);
            for (size_t i = (hole + 1) & (capacity - 1); slots[i].key; i = (i + 1) & (capacity - 1)) {
                size_t from_home = (i - home(slots[i].key)) & (capacity - 1);
                size_t from_hole = (i - hole) & (capacity - 1);
                if (from_home < from_hole) continue;
                slots[hole] = slots[i];
                hole = i;
            }
            slots[hole].key = 0;
            --used;
        }

        template <class Wanted>
        std::optional<Slot> take_first(Wanted&& wanted) {
            std::lock_guard lock(mutex);
            for (size_t i = 0; i < capacity; ++i) {
                if (!slots[i].key || !wanted(slots[i].value)) continue;
                Slot found = slots[i];
                erase(&slots[i]);
                return found;
            }
            return std::nullopt;
        }

        void grow() {
            Slot* old = slots;
            size_t old_capacity = capacity;
            capacity = capacity ? capacity * 2 : 64;
            slots = static_cast<Slot*>(std::calloc(capacity, sizeof(Slot)));
            if (!slots) std::abort();  // a few KiB: the program cannot go on either
            used = 0;
            for (size_t i = 0; i < old_capacity; ++i)
                if (old[i].key) insert(old[i].key, old[i].value);
            std::free(old);
        }
    };

    Shard& shard_of(uint64_t key) { return shards_[mix(key) & (shards_.size() - 1)]; }

    std::array<Shard, 64> shards_;
};

}  // namespace gemlet::hook
