// A program that was built with AddressSanitizer ends at once if another library is loaded before the sanitizer's, as
// the preloaded hook is: one in front that allocates or copies memory by functions of its own would hide it from the
// sanitizer. The hook has none for the program to find, so this says that its place does not matter. A program that
// has options of its own, or ASAN_OPTIONS, goes by these.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options() {
    return "verify_asan_link_order=0";
}
