/* Tiles of Intel's AMX (Advanced Matrix Extensions). td_has_amx_int8() and
 * td_has_amx_bf16() tell whether this processor has them. */
#ifndef TRANSDUCE_GEMM_AMX_H
#define TRANSDUCE_GEMM_AMX_H

#include <stdint.h>

#define AMX_ROWS 16      /* rows of a tile */
#define AMX_ROW_BYTES 64 /* bytes of a row */

/* Operand of the instruction that configures the tiles. */
typedef struct {
    uint8_t palette;        /* 1: eight tiles of AMX_ROWS rows */
    uint8_t reserved[15];   /* zeros */
    uint16_t row_bytes[16]; /* of each tile; tiles 8 to 15 do not exist */
    uint8_t rows[16];
} __attribute__((aligned(64))) AmxTiles;

/* Keep the compiler from delaying writes until after a tile instruction: the intrinsics
 * do not tell it which bytes they read. */
static inline void complete_writes(void) { __asm__ volatile("" ::: "memory"); }

/* All eight tiles with AMX_ROWS full rows. */
static const AmxTiles amx_full_tiles __attribute__((unused)) = {
    1,
    {0},
    {AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES,
     AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES},
    {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS}};

#endif
