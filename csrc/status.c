/* Names and sentences of statuses. */
#include "transduce.h"

static const struct {
    const char *name, *message;
} statuses[] = {
    [TD_OK] = {"TD_OK", "The call succeeded."},
    [TD_OUT_OF_MEMORY] = {"TD_OUT_OF_MEMORY", "There is not enough memory."},
    [TD_BAD_TOKEN] = {"TD_BAD_TOKEN", "A token id is outside the vocabulary."},
    [TD_BAD_ARGUMENT] = {"TD_BAD_ARGUMENT", "An argument is out of range."},
};

static int is_known(td_status status)
{
    return (size_t)status < sizeof statuses / sizeof *statuses;
}

const char *td_status_name(td_status status)
{
    return is_known(status) ? statuses[status].name : "TD_UNKNOWN";
}

const char *td_status_message(td_status status)
{
    return is_known(status) ? statuses[status].message : "The status is unknown.";
}

const char *td_header_hash(void) { return TD_HEADER_HASH; }
