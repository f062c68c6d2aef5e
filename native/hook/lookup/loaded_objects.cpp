// Reads the loader's own list of objects without calling any function: the first lookup often comes from a
// sanitizer's runtime, before its own wrappers of libc functions work.
#include "hook/lookup/loaded_objects.h"

#include <elf.h>
#include <link.h>
#include <cstdint>

// glibc's; absent where musl loads the programs.
#pragma weak _r_debug

namespace gemlet::hook {

namespace {

bool same(const char* a, const char* b) {
    for (; *a && *a == *b; ++a, ++b) {
    }
    return *a == *b;
}

struct Object {
    ElfW(Addr) address;
    const ElfW(Dyn) * dynamic;
};

// The dynamic symbol table of one loaded object.
class DynamicSymbols {
  public:
    explicit DynamicSymbols(const Object& object) : base_(object.address) {
        for (const ElfW(Dyn)* entry = object.dynamic; entry && entry->d_tag != DT_NULL; ++entry) {
            // glibc relocates these pointers in place, except in read-only objects such as the vDSO; musl does not.
            uintptr_t at = entry->d_un.d_ptr < base_ ? entry->d_un.d_ptr + base_ : entry->d_un.d_ptr;
            if (entry->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(at);
            if (entry->d_tag == DT_STRTAB) strings_ = reinterpret_cast<const char*>(at);
            if (entry->d_tag == DT_GNU_HASH) gnu_hash_ = reinterpret_cast<const uint32_t*>(at);
            if (entry->d_tag == DT_HASH) sysv_hash_ = reinterpret_cast<const uint32_t*>(at);
        }
    }

    void* find(const char* name) const {
        if (!symbols_ || !strings_) return nullptr;
        if (gnu_hash_) return find_gnu(name);
        return sysv_hash_ ? find_sysv(name) : nullptr;
    }

  private:
    void* match(uint32_t index, const char* name) const {
        const ElfW(Sym) & symbol = symbols_[index];
        bool defined = symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC;
        if (!defined || !same(strings_ + symbol.st_name, name)) return nullptr;
        return reinterpret_cast<void*>(base_ + symbol.st_value);
    }

    void* find_gnu(const char* name) const {
        uint32_t hash = 5381;
        for (const char* c = name; *c; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
        const uint32_t buckets = gnu_hash_[0], first = gnu_hash_[1], bloom_words = gnu_hash_[2];
        const uint32_t* bucket = gnu_hash_ + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
        const uint32_t* chain = bucket + buckets;
        if (buckets == 0) return nullptr;
        for (uint32_t i = bucket[hash % buckets]; i >= first; ++i) {
            uint32_t other = chain[i - first];
            if ((other | 1) == (hash | 1))
                if (void* found = match(i, name)) return found;
            if (other & 1) break;  // end of the chain
        }
        return nullptr;
    }

    void* find_sysv(const char* name) const {
        const uint32_t symbols = sysv_hash_[1];
        for (uint32_t i = 0; i < symbols; ++i)
            if (void* found = match(i, name)) return found;
        return nullptr;
    }

    const uintptr_t base_;
    const ElfW(Sym) * symbols_ = nullptr;
    const char* strings_ = nullptr;
    const uint32_t* gnu_hash_ = nullptr;
    const uint32_t* sysv_hash_ = nullptr;
};

// Takes the loaded objects in their order, and finds what next_definition() wants among them.
class Search {
  public:
    explicit Search(const char* name) : name_(name) {}

    // True when there is nothing left to look for.
    bool examine(const Object& object) {
        if (object.dynamic == _DYNAMIC) {  // the linker defines one in every object
            passed_ourselves_ = true;
            return false;
        }
        if (found_ && !passed_ourselves_) return false;
        void* found = DynamicSymbols(object).find(name_);
        if (found) found_ = found;
        return found && passed_ourselves_;
    }

    void* found() const { return found_; }

  private:
    const char* const name_;
    bool passed_ourselves_ = false;
    void* found_ = nullptr;
};

int examine_segments(dl_phdr_info* info, size_t, void* search) {
    for (const ElfW(Phdr)* segment = info->dlpi_phdr; segment != info->dlpi_phdr + info->dlpi_phnum; ++segment) {
        if (segment->p_type != PT_DYNAMIC) continue;
        auto* dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + segment->p_vaddr);
        return static_cast<Search*>(search)->examine({info->dlpi_addr, dynamic});
    }
    return 0;
}

}  // namespace

// No lock is needed: between us and libc lie only objects of the program's start, which are never unloaded.
void* next_definition(const char* name) {
    Search search(name);
    if (!&_r_debug) {
        dl_iterate_phdr(examine_segments, &search);
        return search.found();
    }
    for (const link_map* object = _r_debug.r_map; object; object = object->l_next)
        if (search.examine({object->l_addr, object->l_ld})) break;
    return search.found();
}

}  // namespace gemlet::hook
