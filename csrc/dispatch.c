/* Choice of the instruction set, once, by the features of this processor. */
#include <stdlib.h>
#include <string.h>

#include "transduce.h"

/* Every set's implementation; CMakeLists.txt has the list. */
#define TD_INSTRUCTION_SET(name, ...) extern const td_api td_api_##name;
#include "instruction_sets.inc"
#undef TD_INSTRUCTION_SET

typedef struct {
    const td_api *api;
    const char *const *features; /* up to NULL */
} InstructionSet;

#define TD_INSTRUCTION_SET(name, ...)                                                  \
    {&td_api_##name, (const char *const[]){__VA_ARGS__}},
static const InstructionSet sets[] = {
#include "instruction_sets.inc"
    {NULL, NULL},
};
#undef TD_INSTRUCTION_SET

#if defined(__x86_64__)
#include <cpuid.h>

enum { EBX = 1, ECX = 2, EDX = 3, EAX = 0 };

/* Where cpuid reports a feature, by GCC's name of it, and the bits of XCR0 by which the
 * operating system says that it saves the registers. */
static const struct {
    const char *name;
    unsigned leaf, subleaf, reg, bit, xcr0;
} known_features[] = {
    {"fma", 1, 0, ECX, 12, 0x6},       {"avx2", 7, 0, EBX, 5, 0x6},
    {"avxvnni", 7, 1, EAX, 4, 0x6},    {"avx512f", 7, 0, EBX, 16, 0xE6},
    {"avx512dq", 7, 0, EBX, 17, 0xE6}, {"avx512bw", 7, 0, EBX, 30, 0xE6},
    {"avx512vl", 7, 0, EBX, 31, 0xE6}, {"avx512vnni", 7, 0, ECX, 11, 0xE6},
};

static uint64_t saved_registers(void)
{
    unsigned eax, ebx, ecx, edx, low, high;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx >> 27 & 1)) /* OSXSAVE */
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has_feature(const char *name)
{
    for (size_t i = 0; i < sizeof known_features / sizeof *known_features; i++) {
        if (strcmp(known_features[i].name, name) != 0)
            continue;
        unsigned regs[4];
        if (!__get_cpuid_count(known_features[i].leaf, known_features[i].subleaf,
                               &regs[EAX], &regs[EBX], &regs[ECX], &regs[EDX]))
            return 0;
        const uint64_t xcr0 = known_features[i].xcr0;
        return regs[known_features[i].reg] >> known_features[i].bit & 1 &&
               (saved_registers() & xcr0) == xcr0;
    }
    return 0;
}
#else
static int has_feature(const char *name)
{
    (void)name;
    return 0;
}
#endif

static int can_run(const InstructionSet *set)
{
    for (const char *const *feature = set->features; *feature; feature++)
        if (!has_feature(*feature))
            return 0;
    return 1;
}

const td_api *td_load_isa(const char *name)
{
    for (const InstructionSet *set = sets; set->api; set++)
        if (strcmp(set->api->isa, name) == 0)
            return can_run(set) ? set->api : NULL;
    return NULL;
}

const td_api *td_load(void)
{
    const char *name = getenv("TRANSDUCE_ISA");
    if (name && *name)
        return td_load_isa(name);
    for (const InstructionSet *set = sets; set->api; set++)
        if (can_run(set))
            return set->api;
    return NULL;
}

const char *td_isa_names(void)
{
#define TD_INSTRUCTION_SET(name, ...) #name " "
    return
#include "instruction_sets.inc"
        ;
#undef TD_INSTRUCTION_SET
}
