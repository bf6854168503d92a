/* Products of matrices in bf16. */
#include "gemm/bf16_product.h"

#include "gemm/bf16_block.h"

TD_INTERNAL td_bf16_unit bf16_unit(void)
{
    const td_bf16_unit unit = td_get_bf16_unit();
    if (unit == TD_BF16_AMX && can_use_amx_bf16())
        return TD_BF16_AMX;
    return unit != TD_BF16_LOOPS && can_use_avx512_bf16() ? TD_BF16_AVX512
                                                          : TD_BF16_LOOPS;
}

static float dot_product(td_panels x, int64_t row, Bf16Matrix matrix, int64_t column)
{
    const td_bf16 *packed = matrix.packed +
                            column / PACKED_COLUMNS * PACKED_COLUMNS * matrix.inner +
                            column % PACKED_COLUMNS * 2;
    float sum = 0.0f;
    for (int64_t i = 0; i < matrix.inner; i += 2) {
        float one[2], other[2];
        bf16_to_floats(2, panel_element(x, row, i), one);
        bf16_to_floats(2, packed + i * PACKED_COLUMNS, other);
        sum += one[0] * other[0] + one[1] * other[1];
    }
    return sum;
}

static void write_sum(const Bf16Epilogue *e, int64_t row, int64_t column, float sum)
{
    if (e->bias && !e->accumulates)
        sum += e->bias[column];
    if (!e->bf16.data) {
        float *to = e->fp32 + row * e->columns + column;
        *to = e->accumulates ? *to + sum : sum;
        return;
    }
    if (e->relu && sum < 0.0f)
        sum = 0.0f;
    /* A bf16 number is positive if its bits are, read as an integer. */
    if (e->relu_output.data &&
        (int16_t)*panel_element(e->relu_output, row, column) <= 0)
        sum = 0.0f;
    if (e->dropout) {
        sum *= e->dropout->scale;
        if (e->dropout->kept && !(*kept_bits(e, row, column) >> column % CHAR_BIT & 1))
            sum *= 0.0f; /* keeps NaN */
    }
    floats_to_bf16(1, &sum, panel_element(e->bf16, row, column));
}

TD_INTERNAL void multiply_bf16(td_panels x, RowSpan rows, Bf16Matrix matrix,
                               Bf16Epilogue epilogue)
{
    switch (bf16_unit()) {
    case TD_BF16_AMX:
        multiply_by_amx(x, rows, matrix, epilogue);
        return;
    case TD_BF16_AVX512:
        multiply_by_avx512(x, rows, matrix, epilogue);
        return;
    case TD_BF16_LOOPS:
        break;
    }
    for (int64_t row = rows.first; row < rows.end; row++)
        for (int64_t column = 0; column < matrix.columns; column++)
            write_sum(&epilogue, row, column, dot_product(x, row, matrix, column));
}
