/* Calls with arguments that no caller should give: each must return a status, or NULL,
 * and none may crash. Run with sanitizers. */
#include "tests/check.h"

enum { CALLS = 20000 };

static void odd_statuses_and_names_are_harmless(void)
{
    uint32_t state = 1;
    for (int i = 0; i < CALLS; i++) {
        const td_status status = (td_status)random_u32(&state);
        CHECK(td_status_name(status) && td_status_message(status));
        char name[9] = {0};
        for (int k = 0; k < random_int(&state, 0, 8); k++)
            name[k] = (char)random_int(&state, 1, 255);
        const td_api *api = td_load_isa(name);
        CHECK(!api || strcmp(api->isa, name) == 0);
    }
}

int main(void)
{
    RUN(odd_statuses_and_names_are_harmless);
    return check_result();
}
