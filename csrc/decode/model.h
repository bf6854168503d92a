/* The handle of a Transformer with packed weights. */
#ifndef TRANSDUCE_DECODE_MODEL_H
#define TRANSDUCE_DECODE_MODEL_H

#include "decode/positions.h"
#include "decode/stack.h"
#include "transduce.h"

struct td_model {
    td_model_config config;
    Stack encoder, decoder;
    Embedding source_embedding, target_embedding; /* may have the same tokens */
    Linear output;                                /* states of the decoder to logits */
    Positions *positions;
    struct Loading *loading; /* parameters; NULL after model_finish */
    int is_finished;
};

/* Tokens of the vocabulary of logits. */
static inline int64_t target_vocab_size(const td_model *model)
{
    return model->target_embedding.vocab_size;
}

#endif
