// Memory for the hook where the system gives the program none any more (RLIMIT_AS, vm.overcommit_memory = 2).
//
// Without exceptions a failed `new` ends the process. A program that is at its limit may live on well: what it asks
// for fails, and it goes on with what it has. So must the hook, which allocates little: when a daemon comes, when a
// line is said. What it takes then comes from here and is not given back.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kBytes = 1 << 20;  // addresses; pages are taken when they are used
constexpr size_t kAlign = 64;
alignas(kAlign) std::array<char, kBytes> last;
std::atomic<size_t> taken{0};

void* last_memory(size_t bytes) {
    const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
    const size_t at = rounded < bytes || rounded > kBytes ? kBytes : taken.fetch_add(rounded);
    if (at + rounded > kBytes) std::abort();
    return last.data() + at;
}

bool is_last(const void* p) {
    return p >= last.data() && p < last.data() + last.size();
}

void give_back(void* p) {
    if (!is_last(p)) std::free(p);
}

}  // namespace

void* operator new(size_t bytes) {
    void* p = std::malloc(bytes ? bytes : 1);
    return p ? p : last_memory(bytes);
}

void* operator new(size_t bytes, std::align_val_t align) {
    void* p = nullptr;
    if (posix_memalign(&p, std::max(size_t(align), sizeof p), bytes ? bytes : 1) == 0) return p;
    if (size_t(align) > kAlign) std::abort();
    return last_memory(bytes);
}

void operator delete(void* p) noexcept {
    give_back(p);
}

void operator delete(void* p, size_t) noexcept {
    give_back(p);
}

void operator delete(void* p, std::align_val_t) noexcept {
    give_back(p);
}

void operator delete(void* p, size_t, std::align_val_t) noexcept {
    give_back(p);
}
