/* SPDX-License-Identifier: Apache-2.0 */
/* explain: what exists near an address that names nothing. */
#ifndef PAWL_EXPLAIN_H
#define PAWL_EXPLAIN_H

#include "pawl.h"

/* As pawl_explain_address. */
int explain_address(const char *address, struct pawl_error *err);

#endif
