/* A plain `sgemm_`, for tests of stacks in fp32. */
#ifndef TRANSDUCE_TESTS_SGEMM_H
#define TRANSDUCE_TESTS_SGEMM_H

/* `sgemm_` of a BLAS: column-major c = alpha op(a) op(b) + beta c. */
static void sgemm(const char *transpose_a, const char *transpose_b, const int *rows,
                  const int *columns, const int *inner, const float *alpha,
                  const float *a, const int *stride_a, const float *b,
                  const int *stride_b, const float *beta, float *c, const int *stride_c)
{
    for (int i = 0; i < *rows; i++)
        for (int j = 0; j < *columns; j++) {
            double sum = 0.0;
            for (int k = 0; k < *inner; k++)
                sum +=
                    (double)
                        a[*transpose_a == 'N' ? i + k * *stride_a : k + i * *stride_a] *
                    (double)
                        b[*transpose_b == 'N' ? k + j * *stride_b : j + k * *stride_b];
            float *to = c + i + j * *stride_c;
            *to = (float)((double)*alpha * sum) + (*beta != 0.0f ? *beta * *to : 0.0f);
        }
}

#endif
