/* The whole interface of the native library: training and decoding on CPUs.
 *
 * Python reads this file itself (native.py), so that no layout stands anywhere else;
 * library and header carry a hash of it, and only a matching pair is used.
 *
 * Conventions. Every function that can fail returns a td_status. Matrices are
 * row-major; comments give their shapes as [rows, columns]. Sizes and ids are int64_t.
 * Pointers to numbers need no alignment unless said. Handles are created by td_*_new,
 * freed by td_*_free, and used by one thread at a time.
 */
#ifndef TRANSDUCE_H
#define TRANSDUCE_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

typedef enum td_status {
    TD_OK = 0,
    TD_OUT_OF_MEMORY = 1,
    TD_BAD_TOKEN = 2,    /* an id outside the vocabulary */
    TD_BAD_ARGUMENT = 3, /* a size or pointer that the function does not allow */
    TD_UNSUPPORTED = 4   /* not available in this build or on this processor */
} td_status;

/* ---- Training ---------------------------------------------------------------- */

typedef struct td_nn_api {
    int64_t lanes; /* floats that one vector register holds */
} td_nn_api;

/* ---- Decoding ---------------------------------------------------------------- */

typedef struct td_decode_api {
    int64_t lanes;
} td_decode_api;

/* ---- Library ----------------------------------------------------------------- */

/* Everything, implemented with one instruction set. */
typedef struct td_api {
    const char *isa; /* name of the instruction set, such as "avx512" */
    const td_nn_api *nn;
    const td_decode_api *decode;
} td_api;

/* Name of a status, such as "TD_BAD_TOKEN", and a sentence that explains it. */
const char *td_status_name(td_status status);
const char *td_status_message(td_status status);

/* SHA-256 of the header that the library was compiled with, in hexadecimal. */
const char *td_header_hash(void);

/* Implementation for this processor: the fastest one, or the one that the environment
 * variable TRANSDUCE_ISA names. NULL if that one does not exist or cannot run here. */
const td_api *td_load(void);

/* Implementation by name; NULL if the library does not have it or this processor cannot
 * run it. */
const td_api *td_load_isa(const char *name);

/* Names of all implementations in the library, fastest first, separated by spaces. */
const char *td_isa_names(void);

/* Whether products in int8 or bf16 use AMX: the processor has it, the operating system
 * lets this process use it, and td_allow_amx has not switched it off. */
int td_has_amx_int8(void);
int td_has_amx_bf16(void);

/* Let products use AMX where it is available, which is the default, or not. */
void td_allow_amx(int is_allowed);

/* Run parallel work by GOMP_parallel of an OpenMP runtime, so that it shares the
 * threads of other users of that runtime; NULL for threads of this library's own. */
void td_use_openmp(void *gomp_parallel);

#pragma GCC visibility pop

#endif
