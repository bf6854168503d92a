/* The library's own functions: statuses, choice of the instruction set, AMX. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <limits.h>
#include <stdlib.h>

#include "tests/check.h"

static void each_status_has_a_name_and_a_sentence(void)
{
    for (int status = TD_OK; status <= TD_BAD_ARGUMENT; status++) {
        const char *message = td_status_message((td_status)status);
        CHECK(strncmp(td_status_name((td_status)status), "TD_", 3) == 0);
        CHECK(strlen(message) > 10 && message[strlen(message) - 1] == '.');
        for (int other = TD_OK; other < status; other++)
            CHECK(strcmp(message, td_status_message((td_status)other)) != 0);
    }
}

static void unknown_statuses_are_told_as_such(void)
{
    const int unknown[] = {TD_BAD_ARGUMENT + 1, -1, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK(strcmp(td_status_name((td_status)unknown[i]), "TD_UNKNOWN") == 0);
}

static void loaded_api_is_complete(const td_api *api)
{
    CHECK(api->isa && api->nn && api->decode);
    CHECK(td_load_isa(api->isa) == api);
}

static void generic_set_runs_anywhere(void)
{
    const td_api *api = td_load_isa("generic");
    CHECK(api && strcmp(api->isa, "generic") == 0);
    CHECK(td_load() != NULL);
}

static void environment_chooses_the_set(void)
{
    setenv("TRANSDUCE_ISA", "generic", 1);
    CHECK(td_load() == td_load_isa("generic"));
    setenv("TRANSDUCE_ISA", "mmx", 1);
    CHECK(td_load() == NULL);
    setenv("TRANSDUCE_ISA", "", 1);
    CHECK(td_load() != NULL);
    unsetenv("TRANSDUCE_ISA");
    CHECK(td_load() != NULL);
}

static void unknown_names_have_no_api(void)
{
    CHECK(!td_load_isa(""));
    CHECK(!td_load_isa(NULL));
    CHECK(!td_load_isa("generic "));
    CHECK(!td_load_isa("a name that is longer than any of an instruction set"));
}

static void amx_can_be_switched_off(void)
{
    const int has_int8 = td_has_amx_int8(), has_bf16 = td_has_amx_bf16();
    td_allow_amx(0);
    CHECK(!td_has_amx_int8() && !td_has_amx_bf16());
    td_allow_amx(1);
    CHECK(td_has_amx_int8() == has_int8 && td_has_amx_bf16() == has_bf16);
}

static void units_for_bf16_can_be_switched_off(void)
{
    const td_bf16_unit unit = td_get_bf16_unit();
    CHECK((unit == TD_BF16_AMX) == td_has_amx_bf16());
    td_allow_amx(0);
    CHECK(td_get_bf16_unit() != TD_BF16_AMX);
    CHECK(unit == TD_BF16_LOOPS || td_get_bf16_unit() == TD_BF16_AVX512);
    td_allow_avx512_bf16(0);
    CHECK(td_get_bf16_unit() == TD_BF16_LOOPS);
    td_allow_amx(1);
    CHECK((td_get_bf16_unit() == TD_BF16_AMX) == (unit == TD_BF16_AMX));
    td_allow_avx512_bf16(1);
    CHECK(td_get_bf16_unit() == unit);
}

static void no_set_has_a_unit_that_the_processor_lacks(const td_api *api)
{
    CHECK(api->nn->bf16_unit() <= td_get_bf16_unit());
}

static void hash_is_of_256_bits(void) { CHECK_INT(strlen(td_header_hash()), 64); }

int main(void)
{
    RUN(each_status_has_a_name_and_a_sentence);
    RUN(unknown_statuses_are_told_as_such);
    for_each_isa(loaded_api_is_complete);
    RUN(generic_set_runs_anywhere);
    RUN(environment_chooses_the_set);
    RUN(unknown_names_have_no_api);
    RUN(amx_can_be_switched_off);
    RUN(units_for_bf16_can_be_switched_off);
    for_each_isa(no_set_has_a_unit_that_the_processor_lacks);
    RUN(hash_is_of_256_bits);
    return check_result();
}
