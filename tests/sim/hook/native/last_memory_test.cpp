// What `new` does in the hook where the system has no memory left.
#include <sys/resource.h>
#include <cstdlib>
#include <memory>
#include <vector>

int main() {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_AS, &none);
    for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2)
        while (std::malloc(bytes)) {
        }
    for (int i = 0; i < 100; ++i) {
        std::vector<int> some(64, i);
        if (some.back() != i) return 1;
    }
    struct alignas(64) Wide {
        char bytes[64];
    };
    const auto wide = std::make_unique<Wide>();
    return reinterpret_cast<uintptr_t>(wide.get()) % 64 == 0 ? 0 : 2;
}
