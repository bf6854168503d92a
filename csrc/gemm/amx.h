/* Shape of the tiles of Intel's AMX; td_has_amx_int8() and td_has_amx_bf16() say
 * whether it can be used. */
#ifndef TRANSDUCE_GEMM_AMX_H
#define TRANSDUCE_GEMM_AMX_H

#include <stdint.h>

#define AMX_ROWS 16      /* of a tile */
#define AMX_ROW_BYTES 64 /* of a row of a tile */

/* Configuration of the tiles, as the processor reads it. */
typedef struct {
    uint8_t palette, rest[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) AmxTiles;

/* All eight tiles full. */
static const AmxTiles amx_full_tiles __attribute__((unused)) = {
    1,
    {0},
    {AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES,
     AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES},
    {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS}};

#endif
