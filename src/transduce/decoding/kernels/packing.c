/* Weights in the order in which products read them. */
#include <math.h>
#include <string.h>

#include "exported.h"
#include "tiles.h"

/* What belongs to each output is padded to whole blocks. */
EXPORTED int64_t transduce_padded(int64_t outputs)
{
    return num_blocks(outputs) * COLUMNS;
}

EXPORTED int64_t transduce_packed_bytes(int64_t outputs, int64_t inputs, int is_int8)
{
    return num_blocks(outputs) * num_groups(inputs, is_int8) * step_bytes(is_int8);
}

/* Where the weights of an output begin. */
static char *first_weight(void *packed, int64_t output, int64_t inputs, int is_int8)
{
    int64_t block_bytes = num_groups(inputs, is_int8) * step_bytes(is_int8);
    return (char *)packed + output / COLUMNS * block_bytes +
           output % COLUMNS * step_bytes(is_int8) / COLUMNS;
}

/* As they are; `packed` is zero. */
EXPORTED void transduce_pack(const float *weight, int64_t outputs, int64_t inputs,
                             float *packed)
{
    for (int64_t output = 0; output < outputs; output++) {
        char *to = first_weight(packed, output, inputs, 0);
        for (int64_t i = 0; i < inputs; i++, to += step_bytes(0))
            memcpy(to, weight + output * inputs + i, sizeof(float));
    }
}

/* Rounded to 8 bits; `packed`, `scales` and `sums` are zero, and padded. */
EXPORTED void transduce_pack_int8(const float *weight, int64_t outputs, int64_t inputs,
                                  int8_t *packed, float *scales, float *sums)
{
    const int64_t group = group_size(1);
    for (int64_t output = 0; output < outputs; output++) {
        const float *row = weight + output * inputs;
        char *to = first_weight(packed, output, inputs, 1);
        float largest = 1e-8f;
        for (int64_t i = 0; i < inputs; i++)
            largest = fmaxf(largest, fabsf(row[i]));
        float scale = largest / 127.0f;
        int64_t sum = 0, is_nan = 0;
        for (int64_t i = 0; i < inputs; i++) {
            is_nan |= isnan(row[i]) != 0;
            long number = isnan(row[i]) ? 0 : lrintf(row[i] / scale);
            to[i / group * step_bytes(1) + i % group] = (char)number;
            sum += number;
        }
        scales[output] = is_nan ? NAN : scale;
        sums[output] = (float)sum * scales[output];
    }
}
