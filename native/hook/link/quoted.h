// Names in commands that a person is told to type.
#pragma once

#include <cstddef>
#include <cstring>

#include "wire.h"

namespace gemlet::hook {

// A group's name as a shell reads it back.
struct Quoted {
    explicit Quoted(const char* name) {
        constexpr const char* kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:@";
        const bool plain = *name && !name[std::strspn(name, kPlain)];
        if (!plain) put("'");
        for (size_t i = 0; name[i] && i + 1 < wire::kGroupNameBytes; ++i)
            if (name[i] == '\'')
                put("'\\''");  // ends the quotes, and begins them again after one that is escaped
            else
                text[size_++] = name[i];
        if (!plain) put("'");
        text[size_] = 0;
    }
    char text[4 * wire::kGroupNameBytes];

  private:
    void put(const char* more) {
        for (; *more; ++more) text[size_++] = *more;
    }
    size_t size_ = 0;
};

}  // namespace gemlet::hook
