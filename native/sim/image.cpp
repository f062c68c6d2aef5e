#include "image.hpp"

#include <elf.h>

#include <cctype>
#include <cstring>
#include <regex>

namespace gemlet::sim {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kFatbinWrapperMagic = 0x466243b1;

// "_Z4spiny" and "_ZN3foo4spinEy" -> "spin"; plain names stay.
std::string unqualified(const std::string& name) {
    if (!name.starts_with("_Z")) return name;
    size_t at = 2;
    const bool nested = at < name.size() && name[at] == 'N';
    if (nested) ++at;
    std::string last;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) {
        size_t length = 0;
        while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])))
            length = length * 10 + static_cast<size_t>(name[at++] - '0');
        if (length == 0 || length > name.size() - at) break;
        last = name.substr(at, length);
        at += length;
        if (!nested) break;
    }
    return last.empty() ? name : last;
}

void add_entry(Image& image, const std::string& name, std::vector<Parameter> parameters, bool known) {
    auto entry = std::make_shared<Entry>();
    entry->name = name;
    entry->kind = kernel_kind(name);
    entry->parameters = std::move(parameters);
    entry->parameters_known = known;
    image.entries[name] = std::move(entry);
}

uint64_t ptx_type_bytes(const std::string& type) {
    const auto digits = type.find_first_of("0123456789");
    if (digits == std::string::npos) return 1;  // .pred
    return std::strtoull(type.c_str() + digits, nullptr, 10) / 8;
}

// ".param .u64 a, .param .align 8 .b8 b[24]"
std::vector<Parameter> ptx_parameters(const std::string& text) {
    static const std::regex parameter(
        R"(\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[^,)]*?\s+)?[\w$%]+(?:\s*\[\s*(\d+)\s*\])?)");
    std::vector<Parameter> found;
    uint64_t offset = 0;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), parameter); it != std::sregex_iterator(); ++it) {
        const uint64_t element = ptx_type_bytes((*it)[2]);
        const uint64_t count = (*it)[3].matched ? std::stoull((*it)[3]) : 1;
        const uint64_t alignment = (*it)[1].matched ? std::stoull((*it)[1]) : element;
        if (alignment > 0) offset = (offset + alignment - 1) / alignment * alignment;
        found.push_back({offset, element * count});
        offset += element * count;
    }
    return found;
}

void read_ptx(Image& image, const std::string& text) {
    // Walked by hand: a regular expression over megabytes of PTX would overflow the stack.
    for (size_t at = text.find(".entry"); at != std::string::npos; at = text.find(".entry", at)) {
        at += 6;
        size_t begin = text.find_first_not_of(" \t\r\n", at);
        if (begin == std::string::npos) return;
        const size_t end = text.find_first_of(" \t\r\n({;", begin);
        if (end == std::string::npos || end == begin) continue;
        const std::string name = text.substr(begin, end - begin);
        const size_t open = text.find_first_not_of(" \t\r\n", end);
        std::string parameters;
        if (open != std::string::npos && text[open] == '(') {
            const size_t close = text.find(')', open);
            if (close != std::string::npos) parameters = text.substr(open + 1, close - open - 1);
        }
        add_entry(image, name, ptx_parameters(parameters), true);
        at = end;
    }
    // ".visible .global .align 8 .b8 name[64];"
    for (size_t at = text.find(".global "); at != std::string::npos; at = text.find(".global ", at + 1)) {
        const size_t line_start = text.rfind('\n', at) + 1;
        if (text.find_first_not_of(" \t.abcdefghijklmnopqrstuvwxyz", line_start) < at) continue;  // an instruction
        const size_t end = text.find_first_of(";={", at);
        if (end == std::string::npos) return;
        static const std::regex variable(
            R"(\.global\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$%]+)(?:\s*\[\s*(\d+)\s*\])?)");
        const std::string declaration = text.substr(at, end - at);
        std::smatch match;
        if (!std::regex_search(declaration, match, variable)) continue;
        image.globals[match[2]] = ptx_type_bytes(match[1]) * (match[3].matched ? std::stoull(match[3]) : 1);
    }
}

// Kernel parameters are listed in .nv.info.<kernel>: records of {format, attribute, size or value, payload}.
std::vector<Parameter> cubin_parameters(const unsigned char* data, uint64_t size) {
    constexpr unsigned char kFormatSized = 4, kParameterInfo = 0x17;
    std::map<uint32_t, Parameter> by_ordinal;
    for (uint64_t at = 0; at + 4 <= size;) {
        uint16_t length = 0;
        std::memcpy(&length, data + at + 2, 2);
        if (data[at] != kFormatSized) {
            at += 4;
            continue;
        }
        if (data[at + 1] == kParameterInfo && length >= 12 && at + 4 + 12 <= size) {
            uint16_t ordinal = 0, offset = 0;
            uint32_t packed = 0;
            std::memcpy(&ordinal, data + at + 8, 2);
            std::memcpy(&offset, data + at + 10, 2);
            std::memcpy(&packed, data + at + 12, 4);
            by_ordinal[ordinal] = {offset, packed >> 18};
        }
        at += 4u + length;
    }
    std::vector<Parameter> found;
    for (const auto& [ordinal, parameter] : by_ordinal) found.push_back(parameter);
    return found;
}

uint64_t elf_size(const unsigned char* data) {
    Elf64_Ehdr header;
    std::memcpy(&header, data, sizeof header);
    const uint64_t sections = header.e_shoff + static_cast<uint64_t>(header.e_shnum) * header.e_shentsize;
    const uint64_t segments = header.e_phoff + static_cast<uint64_t>(header.e_phnum) * header.e_phentsize;
    return std::max(sections, segments);
}

void read_elf(Image& image, const unsigned char* data, uint64_t size) {
    if (size < sizeof(Elf64_Ehdr) || data[EI_CLASS] != ELFCLASS64) return;
    Elf64_Ehdr header;
    std::memcpy(&header, data, sizeof header);
    auto section = [&](unsigned index, Elf64_Shdr& out) {
        const uint64_t at = header.e_shoff + static_cast<uint64_t>(index) * sizeof out;
        if (index >= header.e_shnum || at + sizeof out > size) return false;
        std::memcpy(&out, data + at, sizeof out);
        return out.sh_type == SHT_NOBITS || (out.sh_offset <= size && out.sh_size <= size - out.sh_offset);
    };
    auto text_at = [&](const Elf64_Shdr& strings, uint64_t offset) -> std::string {
        if (offset >= strings.sh_size) return "";
        const char* start = reinterpret_cast<const char*>(data + strings.sh_offset + offset);
        return std::string(start, strnlen(start, strings.sh_size - offset));
    };
    Elf64_Shdr names;
    if (!section(header.e_shstrndx, names)) return;
    std::map<std::string, std::vector<Parameter>> parameters;
    for (unsigned i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr s;
        if (!section(i, s)) continue;
        const std::string name = text_at(names, s.sh_name);
        if (name.starts_with(".text.")) add_entry(image, name.substr(6), {}, true);
        if (name.starts_with(".nv.info."))
            parameters[name.substr(9)] = cubin_parameters(data + s.sh_offset, s.sh_size);
        if (s.sh_type != SHT_SYMTAB) continue;
        Elf64_Shdr strings;
        if (!section(s.sh_link, strings)) continue;
        for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= s.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            std::memcpy(&symbol, data + s.sh_offset + at, sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_size > 0)
                image.globals[text_at(strings, symbol.st_name)] = symbol.st_size;
        }
    }
    for (auto& [name, list] : parameters)
        if (image.entries.contains(name)) add_entry(image, name, std::move(list), true);
}

// A fat binary is a header and entries, each PTX or an ELF; compressed ones stay closed to us.
void read_fatbin(Image& image, const unsigned char* data) {
    uint16_t header_bytes = 0;
    uint64_t body = 0;
    std::memcpy(&header_bytes, data + 6, 2);
    std::memcpy(&body, data + 8, 8);
    const unsigned char* at = data + header_bytes;
    const unsigned char* end = at + body;
    while (at + 32 <= end) {
        uint32_t entry_header = 0;
        uint64_t payload = 0;
        std::memcpy(&entry_header, at + 4, 4);
        std::memcpy(&payload, at + 8, 8);
        if (entry_header < 32 || payload > static_cast<uint64_t>(end - at) - entry_header) return;
        const Image inner = read_image(at + entry_header, payload);
        for (const auto& [name, entry] : inner.entries)
            if (!image.entries.contains(name)) image.entries[name] = entry;
        for (const auto& [name, bytes] : inner.globals) image.globals[name] = bytes;
        at += entry_header + payload;
    }
}

}  // namespace

KernelKind kernel_kind(const std::string& name) {
    const std::string plain = unqualified(name);
    if (plain == "spin") return KernelKind::kSpin;
    if (plain == "fill") return KernelKind::kFill;
    if (plain == "add") return KernelKind::kAdd;
    if (plain == "meet") return KernelKind::kMeet;
    if (plain == "gemlet_fingerprint") return KernelKind::kFingerprint;
    return KernelKind::kUnknown;
}

Image read_image(const void* data, uint64_t size) {
    Image image;
    const auto* bytes = static_cast<const unsigned char*>(data);
    uint32_t magic = 0;
    if (size != 0 && size < 4) return image;
    std::memcpy(&magic, bytes, 4);
    if (magic == kFatbinWrapperMagic) {
        const void* inner = nullptr;
        std::memcpy(&inner, bytes + 8, sizeof inner);
        return read_image(inner, 0);
    }
    if (magic == kFatbinMagic) {
        read_fatbin(image, bytes);
    } else if (std::memcmp(bytes, ELFMAG, SELFMAG) == 0) {
        read_elf(image, bytes, size != 0 ? size : elf_size(bytes));
    } else {
        const char* text = reinterpret_cast<const char*>(bytes);
        read_ptx(image, std::string(text, size != 0 ? strnlen(text, size) : std::strlen(text)));
    }
    return image;
}

}  // namespace gemlet::sim
