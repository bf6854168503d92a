/* td_api of one instruction set. */
#include "isa/name.h"
#include "transduce.h"

extern const td_nn_api TD_NAME(td_nn);
extern const td_decode_api TD_NAME(td_decode);

const td_api TD_NAME(td_api) = {
    .isa = TD_ISA_STRING,
    .nn = &TD_NAME(td_nn),
    .decode = &TD_NAME(td_decode),
};
