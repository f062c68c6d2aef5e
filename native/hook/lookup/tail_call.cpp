// Our dlsym, dlvsym, dlopen and dlmopen. They ask C++ where to go, put the arguments back and jump: the function they
// jump to sees the program's return address, because what RTLD_NEXT and RTLD_DEFAULT mean and where libraries are
// looked for depends on it. A sibling call that the optimiser may or may not make is not enough (-O0 and sanitizer
// builds do not), hence assembly. The fourth argument of what they ask is where the first three are kept meanwhile.

#if defined(__x86_64__)
// clang-format off
#define TAIL_CALL(name, chooser)                       \
    asm(".text\n"                                      \
        ".hidden " chooser "\n"                        \
        ".globl " name "\n"                            \
        ".type " name ", @function\n"                  \
        name ":\n"                                     \
        ".cfi_startproc\n"                             \
        "endbr64\n"                                    \
        "pushq %rdx\n" ".cfi_adjust_cfa_offset 8\n"    \
        "pushq %rsi\n" ".cfi_adjust_cfa_offset 8\n"    \
        "pushq %rdi\n" ".cfi_adjust_cfa_offset 8\n"    \
        "movq %rsp, %rcx\n"                            \
        "call " chooser "\n"                           \
        "popq %rdi\n"  ".cfi_adjust_cfa_offset -8\n"   \
        "popq %rsi\n"  ".cfi_adjust_cfa_offset -8\n"   \
        "popq %rdx\n"  ".cfi_adjust_cfa_offset -8\n"   \
        "jmp *%rax\n"                                  \
        ".cfi_endproc\n"                               \
        ".size " name ", . - " name "\n")
#elif defined(__aarch64__)
#define TAIL_CALL(name, chooser)                       \
    asm(".text\n"                                      \
        ".hidden " chooser "\n"                        \
        ".globl " name "\n"                            \
        ".type " name ", %function\n"                  \
        name ":\n"                                     \
        ".cfi_startproc\n"                             \
        "hint #34\n" /* bti c */                       \
        "stp x29, x30, [sp, #-48]!\n"                  \
        ".cfi_adjust_cfa_offset 48\n"                  \
        ".cfi_rel_offset x29, 0\n"                     \
        ".cfi_rel_offset x30, 8\n"                     \
        "stp x0, x1, [sp, #16]\n"                      \
        "str x2, [sp, #32]\n"                          \
        "mov x29, sp\n"                                \
        "add x3, sp, #16\n"                            \
        "bl " chooser "\n"                             \
        "mov x16, x0\n"                                \
        "ldp x0, x1, [sp, #16]\n"                      \
        "ldr x2, [sp, #32]\n"                          \
        "ldp x29, x30, [sp], #48\n"                    \
        ".cfi_adjust_cfa_offset -48\n"                 \
        ".cfi_restore x29\n"                           \
        ".cfi_restore x30\n"                           \
        "br x16\n"                                     \
        ".cfi_endproc\n"                               \
        ".size " name ", . - " name "\n")
#else
#error "dlsym needs a tail call for this architecture"
#endif
// clang-format on

// Defined in intercept.cpp.
TAIL_CALL("dlsym", "gemlet_choose_dlsym");
TAIL_CALL("dlvsym", "gemlet_choose_dlvsym");
// Defined in namespaces.cpp.
TAIL_CALL("dlopen", "gemlet_choose_dlopen");
TAIL_CALL("dlmopen", "gemlet_choose_dlmopen");
