// What a module image holds, as far as the simulation cares: the names of its kernels and global variables.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gemlet::sim {

// The kernel contract (docs/simulated-machine.md): what a kernel does follows from its name.
enum class KernelKind : uint8_t { kUnknown, kSpin, kFill, kAdd, kFingerprint, kMeet };

struct Parameter {
    uint64_t offset, bytes;
};

struct Entry {
    std::string name;
    KernelKind kind = KernelKind::kUnknown;
    std::vector<Parameter> parameters;
    bool parameters_known = false;
};

struct Image {
    std::map<std::string, std::shared_ptr<const Entry>> entries;
    std::map<std::string, uint64_t> globals;  // name -> bytes
};

// Reads PTX text, an ELF cubin or a fat binary. Anything else is an image without kernels.
// `size` 0: not known, the image says itself where it ends.
Image read_image(const void* data, uint64_t size);

KernelKind kernel_kind(const std::string& name);

}  // namespace gemlet::sim
