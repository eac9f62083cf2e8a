/* SPDX-License-Identifier: Apache-2.0 */
/*
 * withdraw: how a save is called off where folders cannot be renamed. A checkpoint begins to exist when its manifest is put,
 * only if there is none; what calls the save off is put under the same key, in the same way. So there is one decision, and
 * whoever comes second finds it made: a writer that was overtaken between its last look and its manifest's put, too.
 *
 *   checkpoints/<name>/manifest.json    {"pawl_withdrawn":1,"token":"<of the save>","by":"<32 hex>"}
 *
 * token is "" where it is not known. Only two put it: a rank whose packs lie in the folder, and who has seen after that that the
 * run is still its own; and whoever has taken the run over, for every folder that has no manifest. The model
 * tests/model/bucket.pml shows that nobody else's save is ever in the way. Promises P2, P10, P11.
 */
#ifndef PAWL_WITHDRAW_H
#define PAWL_WITHDRAW_H

#include <stdbool.h>

#include "pawl.h"
#include "store/store.h"

/* Calls off the save in a folder. PAWL_EEXISTS: it has been decided before. token: NULL = not known. */
int withdraw_put(struct store *store, const char *folder, const char *token, struct pawl_error *err);
/* The same for every folder in `folder` that has no manifest. */
int withdraw_open_ones(struct store *store, const char *folder, struct pawl_error *err);
/* Removes a folder that is no checkpoint, but for what calls the save off: a save that comes late must find that.
 * PAWL_EEXISTS: it is one. */
int withdraw_remove(struct store *store, const char *folder, struct pawl_error *err);
/* Removes what called saves off so long ago that nobody comes late any more, and that left nothing else; *count goes up. */
int withdraw_forget(struct pawl *run, bool dry_run, uint64_t *count, struct pawl_error *err);

#endif
