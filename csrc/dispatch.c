/* Choice of the instruction set by the features of the processor. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "transduce.h"

/* CMake writes instruction_sets.inc: TD_INSTRUCTION_SET(name, features..., NULL) for
 * each set, fastest first. */
#define TD_INSTRUCTION_SET(name, ...) extern const td_api td_api_##name;
#include "instruction_sets.inc"
#undef TD_INSTRUCTION_SET

typedef struct {
    const td_api *api;
    const char *const *features; /* required ones, then NULL */
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

enum { EAX, EBX, ECX, EDX };

/* Bits of XCR0: register sets that the operating system saves. */
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xE6, XCR0_TILES = 0x60000 };

/* Names of features in GCC's options, where cpuid reports them, and the register sets
 * that they need. */
static const struct {
    const char *name;
    unsigned leaf, subleaf, reg, bit, xcr0;
} known_features[] = {
    {"fma", 1, 0, ECX, 12, XCR0_AVX},
    {"avx2", 7, 0, EBX, 5, XCR0_AVX},
    {"avxvnni", 7, 1, EAX, 4, XCR0_AVX},
    {"avx512f", 7, 0, EBX, 16, XCR0_AVX512},
    {"avx512dq", 7, 0, EBX, 17, XCR0_AVX512},
    {"avx512bw", 7, 0, EBX, 30, XCR0_AVX512},
    {"avx512vl", 7, 0, EBX, 31, XCR0_AVX512},
    {"avx512vnni", 7, 0, ECX, 11, XCR0_AVX512},
    {"avx512bf16", 7, 1, EAX, 5, XCR0_AVX512},
    {"amx-tile", 7, 0, EDX, 24, XCR0_TILES},
    {"amx-int8", 7, 0, EDX, 25, XCR0_TILES},
    {"amx-bf16", 7, 0, EDX, 22, XCR0_TILES},
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

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#define HAS_DOT_PRODUCT (1ul << 20) /* HWCAP_ASIMDDP, missing in old headers */

static int has_feature(const char *name)
{
    return strcmp(name, "dotprod") == 0 && (getauxval(AT_HWCAP) & HAS_DOT_PRODUCT) != 0;
}

#else

static int has_feature(const char *name)
{
    (void)name;
    return 0;
}

#endif

/* ---- AMX and AVX-512 BF16 ----------------------------------------------------- */

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* Request permission to use the tiles, which Linux saves for such processes only. */
static int request_tiles(void)
{
    return has_feature("amx-tile") &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int request_tiles(void) { return 0; }
#endif

enum { AMX_INT8 = 1, AMX_BF16 = 2, AVX512_BF16 = 4, UNITS_ARE_KNOWN = 8 };

static _Atomic int units; /* bits as above; 0 before the first call of has_unit() */
static _Atomic int amx_is_off, avx512_bf16_is_off;

static int has_unit(int unit)
{
    int known = atomic_load(&units);
    if (!known) {
        known = UNITS_ARE_KNOWN;
        known |= has_feature("avx512bf16") ? AVX512_BF16 : 0;
        if (request_tiles()) {
            known |= has_feature("amx-int8") ? AMX_INT8 : 0;
            /* AVX-512 rounds the sums of AMX. */
            known |= has_feature("amx-bf16") && known & AVX512_BF16 ? AMX_BF16 : 0;
        }
        atomic_store(&units, known);
    }
    return (known & unit) != 0;
}

int td_has_amx_int8(void) { return has_unit(AMX_INT8) && !atomic_load(&amx_is_off); }

int td_has_amx_bf16(void) { return has_unit(AMX_BF16) && !atomic_load(&amx_is_off); }

td_bf16_unit td_get_bf16_unit(void)
{
    if (td_has_amx_bf16())
        return TD_BF16_AMX;
    return has_unit(AVX512_BF16) && !atomic_load(&avx512_bf16_is_off) ? TD_BF16_AVX512
                                                                      : TD_BF16_LOOPS;
}

void td_allow_amx(int is_allowed) { atomic_store(&amx_is_off, !is_allowed); }

void td_allow_avx512_bf16(int is_allowed)
{
    atomic_store(&avx512_bf16_is_off, !is_allowed);
}

/* ---- Instruction sets --------------------------------------------------------- */

static int can_run(const InstructionSet *set)
{
    for (const char *const *feature = set->features; *feature; feature++)
        if (!has_feature(*feature))
            return 0;
    return 1;
}

const td_api *td_load_isa(const char *name)
{
    for (const InstructionSet *set = sets; name && set->api; set++)
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
