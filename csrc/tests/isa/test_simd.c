/* Vectors against plain C, for each instruction set. */
#include <math.h>
#include <stdlib.h>

#include "isa/name.h"
#include "simd/bf16.h"
#include "simd/bf16_pairs.h"
#include "simd/prefetch.h"
#include "simd/vec.h"
#include "tests/check.h"

static void get(vec x, float *lanes) { vec_store(lanes, x); }

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Different numbers, some of them special. */
static vec some_numbers(uint32_t *state, float *lanes)
{
    const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-39f};
    for (int i = 0; i < LANES; i++)
        lanes[i] = random_int(state, 0, 3) ? 50.0f * random_float(state)
                                           : special[random_int(state, 0, 5)];
    return vec_load(lanes);
}

static void masks_choose_the_first_lanes(void)
{
    uint32_t state = 1;
    for (int64_t left = -3; left <= LANES + 3; left++) {
        float from[LANES], got[LANES], to[LANES + 4];
        for (int i = 0; i < LANES; i++)
            from[i] = 1.0f + random_float(&state);
        get(vec_load_masked(vec_mask_first(left), from), got);
        for (int i = 0; i < LANES; i++)
            CHECK(got[i] == (i < left ? from[i] : 0.0f));
        get(vec_select(vec_mask_first(left), vec_set1(1.0f), vec_set1(NAN)), got);
        for (int i = 0; i < LANES; i++)
            CHECK(i < left ? got[i] == 1.0f : isnan(got[i]));
        for (int i = 0; i < LANES + 4; i++)
            to[i] = -7.0f;
        vec_store_first(to + 1, left, vec_load(from));
        for (int i = 0; i < LANES + 4; i++)
            CHECK(to[i] == (i > 0 && i <= left && i <= LANES ? from[i - 1] : -7.0f));
    }
}

/* A sanitizer detects reads of lanes outside the mask. */
static void masked_lanes_are_not_read(void)
{
    for (int64_t left = 1; left <= LANES; left++) {
        float *from = calloc((size_t)left, sizeof *from);
        for (int64_t i = 0; i < left; i++)
            from[i] = 1.0f;
        CHECK_NEAR(vec_reduce_add(vec_load_masked(vec_mask_first(left), from)), left,
                   0);
        vec_store_first(from, left, vec_set1(2.0f));
        CHECK(from[left - 1] == 2.0f);
        free(from);
    }
}

static void comparisons_are_those_of_numbers(void)
{
    uint32_t state = 2;
    for (int trial = 0; trial < 500; trial++) {
        float a[LANES], b[LANES], got[LANES];
        const vec x = some_numbers(&state, a), y = some_numbers(&state, b);
        get(vec_max(x, y), got);
        for (int i = 0; i < LANES; i++)
            CHECK_NEAR(got[i], a[i] > b[i] ? a[i] : b[i], 0);
        get(vec_min(x, y), got);
        for (int i = 0; i < LANES; i++)
            CHECK_NEAR(got[i], a[i] < b[i] ? a[i] : b[i], 0);
        get(vec_select(vec_gt_zero(x), x, y), got);
        const uint32_t greater = vec_gt_bits(x, y), signs = vec_sign_bits(x);
        for (int i = 0; i < LANES; i++) {
            CHECK_NEAR(got[i], a[i] > 0 ? a[i] : b[i], 0);
            CHECK_INT(greater >> i & 1, a[i] > b[i]);
            CHECK_INT(signs >> i & 1, bits_of(a[i]) >> 31);
        }
        CHECK(LANES == 32 || greater >> LANES == 0);
        CHECK(LANES == 32 || signs >> LANES == 0);
    }
}

static void sums_and_extremes_are_over_all_lanes(void)
{
    uint32_t state = 3;
    for (int trial = 0; trial < 100; trial++) {
        float a[LANES], b[LANES], c[LANES], got[LANES];
        double sum = 0, max = -INFINITY, min = INFINITY;
        for (int i = 0; i < LANES; i++) {
            a[i] = random_float(&state);
            b[i] = random_float(&state);
            c[i] = random_float(&state);
            sum += a[i];
            max = fmax(max, a[i]);
            min = fmin(min, a[i]);
        }
        CHECK_NEAR(vec_reduce_add(vec_load(a)), sum, 1e-5);
        CHECK_NEAR(vec_reduce_max(vec_load(a)), max, 0);
        CHECK_NEAR(vec_reduce_min(vec_load(a)), min, 0);
        get(vec_fma(vec_load(a), vec_load(b), vec_load(c)), got);
        for (int i = 0; i < LANES; i++)
            CHECK_NEAR(got[i], (double)a[i] * b[i] + c[i], 2e-7);
    }
}

static void halves_keep_the_sum(void)
{
    float lanes[LANES], eight[8];
    for (int i = 0; i < LANES; i++)
        lanes[i] = (float)(i * i);
    const vec8 halves = vec_add_halves(vec_load(lanes));
    memcpy(eight, &halves, sizeof eight);
    for (int i = 0; i < 8; i++)
        CHECK_NEAR(eight[i], LANES == 8 ? lanes[i] : lanes[i] + lanes[i + 8], 0);
    get(vec_from_halves(halves, halves), lanes);
    for (int i = 0; i < LANES; i++)
        CHECK_NEAR(lanes[i], eight[i % 8], 0);
}

static void eight_vectors_are_summed_at_once(void)
{
    uint32_t state = 4;
    float numbers[8][8], got[8];
    vec8 x[8];
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 8; k++)
            numbers[i][k] = random_float(&state);
        memcpy(x + i, numbers[i], sizeof x[i]);
    }
    const vec8 sums = sum_each_of_8(x);
    memcpy(got, &sums, sizeof got);
    for (int i = 0; i < 8; i++) {
        double sum = 0;
        for (int k = 0; k < 8; k++)
            sum += numbers[i][k];
        CHECK_NEAR(got[i], sum, 2e-6);
    }
}

static void blocks_are_transposed_in_place_too(void)
{
    float from[8 * 9], to[8 * 10];
    for (int i = 0; i < 8 * 9; i++)
        from[i] = (float)i;
    transpose_8x8(from, 9, to, 10);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++)
            CHECK(to[column * 10 + row] == from[row * 9 + column]);
    transpose_8x8(to, 10, to, 10);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++)
            CHECK(to[row * 10 + column] == from[row * 9 + column]);
}

static void later_rows_of_a_transpose_overwrite_earlier_ones(void)
{
    float from[8 * 8], to[6 * 7 + 8];
    for (int i = 0; i < 8 * 8; i++)
        from[i] = (float)i;
    transpose_8x8(from, 8, to, 6);
    for (int column = 0; column < 8; column++)
        for (int row = 0; row < (column < 7 ? 6 : 8); row++)
            CHECK(to[column * 6 + row] == from[row * 8 + column]);
}

static void whole_numbers_and_fractions_are_exact(void)
{
    const float numbers[] = {0.5f, 1.5f, 2.5f,  -0.5f,    -1.5f,     3.49999f,
                             7.0f, 0.1f, -0.1f, 1e6f + 1, -99.9999f, 88.0f};
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
        float got[LANES];
        get(vec_round(vec_set1(numbers[n])), got);
        CHECK_NEAR(got[n % LANES], rintf(numbers[n]), 0);
        get(vec_fraction(vec_set1(numbers[n])), got);
        CHECK_NEAR(got[n % LANES], numbers[n] - floorf(numbers[n]), 0);
    }
    float got[LANES];
    get(vec_fraction(vec_set1(-INFINITY)), got);
    CHECK_NEAR(got[0], 0, 0);
    get(vec_fraction(vec_set1(NAN)), got);
    CHECK(isnan(got[0]));
}

static void powers_are_exact_to_a_unit_in_the_last_place(void)
{
    float got[LANES];
    for (int i = -8690; i < 8800; i++) {
        const float x = (float)i / 100.01f;
        get(vec_exp(vec_set1(x)), got);
        CHECK_NEAR(got[LANES - 1] / exp((double)x), 1, 1.5e-7);
    }
    for (int i = -12590; i < 12790; i++) {
        const float x = (float)i / 100.01f;
        get(vec_exp2(vec_set1(x)), got);
        CHECK_NEAR(got[LANES - 1] / exp2((double)x), 1, 2.5e-7);
    }
    for (int n = -126; n < 128; n++) {
        get(vec_exp2(vec_set1((float)n)), got);
        CHECK_NEAR(got[0], ldexp(1, n), 0);
    }
    const float low[] = {-105, -150, -1e4f, -1e30f, -INFINITY};
    for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
        get(vec_exp(vec_set1(low[i])), got);
        CHECK_NEAR(got[0], 0, 0);
        get(vec_exp2(vec_set1(1.5f * low[i])), got);
        CHECK_NEAR(got[0], 0, 0);
    }
    get(vec_exp(vec_set1(0)), got);
    CHECK_NEAR(got[0], 1, 0);
    get(vec_exp(vec_set1(NAN)), got);
    CHECK(isnan(got[0]));
    get(vec_exp2(vec_set1(NAN)), got);
    CHECK(isnan(got[0]));
}

/* Weights of a group as vec_dot_int8 reads them. */
static void put_weights(const int8_t weights[LANES][INT8_GROUP], uint8_t *to)
{
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < INT8_GROUP; i++)
            to[i / 4 * (4 * LANES) + 4 * lane + i % 4] = (uint8_t)weights[lane][i];
}

static void products_of_bytes_are_exact(void)
{
    uint32_t state = 5;
    const int largest = SUMS_IN_16_BITS ? 31 : 127;
    for (int trial = 0; trial < 500; trial++) {
        int8_t weights[LANES][INT8_GROUP];
        uint8_t packed[LANES * INT8_GROUP], group[LANES];
        float numbers[LANES], got[LANES];
        const int is_extreme = trial % 4 == 0;
        for (int lane = 0; lane < LANES; lane++) {
            numbers[lane] = is_extreme ? 255.0f : (float)random_int(&state, 0, 255);
            for (int i = 0; i < INT8_GROUP; i++)
                weights[lane][i] = (int8_t)random_int(&state, -largest, largest);
            if (is_extreme)
                memset(weights[lane], lane % 2 ? largest : -largest, INT8_GROUP);
        }
        put_weights(weights, packed);
        vec_store_int8(group, INT8_GROUP, vec_load(numbers));
        const vec once = vec_dot_int8(vec_set1(0.0f), group, packed);
        get(vec_from_i32(vec_dot_int8(once, group, packed)), got);
        for (int lane = 0; lane < LANES; lane++) {
            float sum = 0;
            for (int i = 0; i < INT8_GROUP; i++)
                sum += (numbers[i] - INT8_OFFSET) * (float)weights[lane][i];
            CHECK_NEAR(got[lane], 2 * sum, 0);
        }
    }
}

static void bytes_are_rounded_and_stored_in_groups(void)
{
    uint32_t state = 6;
    float numbers[4 * LANES];
    uint8_t groups[LANES / INT8_GROUP * 11], together[4 * LANES];
    vec x[4];
    for (int i = 0; i < 4 * LANES; i++)
        numbers[i] = 127.5f + 127.5f * random_float(&state);
    numbers[0] = 0.5f, numbers[1] = 254.5f, numbers[2] = 255.0f, numbers[3] = 1.5f;
    for (int i = 0; i < 4; i++)
        x[i] = vec_load(numbers + i * LANES);
    vec_store_int8(groups, 11, x[0]);
    for (int i = 0; i < LANES; i++)
        CHECK_INT(groups[i / INT8_GROUP * 11 + i % INT8_GROUP] ^ INT8_OFFSET,
                  lrintf(numbers[i]));
    vec_store_int8_x4(together, x);
    for (int i = 0; i < 4 * LANES; i++)
        CHECK_INT(together[i] ^ INT8_OFFSET, lrintf(numbers[i]));
}

static void bf16_is_the_nearest_with_ties_to_even(void)
{
    uint32_t state = 7;
    for (int trial = 0; trial < 20000; trial++) {
        float from[LANES], back[LANES];
        uint16_t halves[LANES];
        for (int i = 0; i < LANES; i++) {
            uint32_t bits = random_u32(&state);
            if (trial % 3 == 0)
                bits = (bits & 0xFFFF0000u) | 0x8000u; /* a tie */
            memcpy(from + i, &bits, sizeof bits);
        }
        vec_store_bf16(halves, vec_load(from));
        get(vec_from_bf16(halves), back);
        for (int i = 0; i < LANES; i++) {
            const uint32_t bits = bits_of(from[i]);
            const uint32_t nearest = bits + 0x7FFFu + (bits >> 16 & 1);
            if (isnan(from[i]))
                CHECK(isnan(back[i]));
            else
                CHECK_INT(bits_of(back[i]), nearest & 0xFFFF0000u);
        }
    }
}

static void rows_in_bf16_have_any_length(void)
{
    for (int64_t count = 0; count <= 3 * LANES; count++) {
        float from[3 * LANES], back[3 * LANES];
        td_bf16 halves[3 * LANES + 1];
        halves[count] = 12345;
        for (int64_t i = 0; i < count; i++)
            from[i] = (float)i;
        floats_to_bf16(count, from, halves);
        bf16_to_floats(count, halves, back);
        for (int64_t i = 0; i < count; i++)
            CHECK(from[i] == back[i]);
        CHECK_INT(halves[count], 12345);
    }
}

static void pairs_of_bf16_are_interleaved_and_transposed(void)
{
    td_bf16 rows[2][BF16_PAIRS], got[BF16_PAIRS][2];
    Bf16Pairs square[BF16_PAIRS];
    for (int i = 0; i < BF16_PAIRS; i++)
        rows[0][i] = (td_bf16)(i + 1), rows[1][i] = (td_bf16)(100 + i);
    for (int has_second = 0; has_second < 2; has_second++) {
        store_bf16_pairs(got[0], interleave_bf16(rows[0], BF16_PAIRS, has_second));
        for (int i = 0; i < BF16_PAIRS; i++) {
            CHECK_INT(got[i][0], rows[0][i]);
            CHECK_INT(got[i][1], has_second ? rows[1][i] : 0);
        }
    }
    for (int r = 0; r < BF16_PAIRS; r++) {
        for (int c = 0; c < BF16_PAIRS; c++)
            got[c][0] = (td_bf16)(r * 16 + c), got[c][1] = (td_bf16)(1000 + r * 16 + c);
        square[r] = load_bf16_pairs(got[0]);
    }
    transpose_bf16_pairs(square);
    for (int r = 0; r < BF16_PAIRS; r++) {
        store_bf16_pairs(got[0], square[r]);
        for (int c = 0; c < BF16_PAIRS; c++) {
            CHECK_INT(got[c][0], c * 16 + r);
            CHECK_INT(got[c][1], 1000 + c * 16 + r);
        }
    }
}

static void prefetching_never_faults(void)
{
    prefetch(NULL, 4096);
    prefetch((const void *)(uintptr_t)4097, 100000);
}

/* Not a part of main(), which would use the instruction set before it is checked. */
static __attribute__((noinline)) void run_all(void)
{
    RUN(masks_choose_the_first_lanes);
    RUN(masked_lanes_are_not_read);
    RUN(comparisons_are_those_of_numbers);
    RUN(sums_and_extremes_are_over_all_lanes);
    RUN(halves_keep_the_sum);
    RUN(eight_vectors_are_summed_at_once);
    RUN(blocks_are_transposed_in_place_too);
    RUN(later_rows_of_a_transpose_overwrite_earlier_ones);
    RUN(whole_numbers_and_fractions_are_exact);
    RUN(powers_are_exact_to_a_unit_in_the_last_place);
    RUN(products_of_bytes_are_exact);
    RUN(bytes_are_rounded_and_stored_in_groups);
    RUN(bf16_is_the_nearest_with_ties_to_even);
    RUN(rows_in_bf16_have_any_length);
    RUN(pairs_of_bf16_are_interleaved_and_transposed);
    RUN(prefetching_never_faults);
}

int main(void)
{
    SKIP_IF_UNSUPPORTED();
    run_all();
    return check_result();
}
