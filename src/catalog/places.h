/* SPDX-License-Identifier: Apache-2.0 */
/* places: what a path or URL holds, and what is below it. */
#ifndef PAWL_PLACES_H
#define PAWL_PLACES_H

#include "pawl.h"

#define SEARCH_KEY "experiment.json" /* makes a folder a search */
#define SEARCH_JOURNAL "journal"     /* a file of a search that is written at each of its changes */

/* As pawl_kind_of. */
int places_kind_of(const char *root, const struct pawl_stores *stores, struct pawl_error *err);

#endif
