/* SPDX-License-Identifier: Apache-2.0 */
/* search_sync: copies a search's folder to the place that its document names ("sync"), and back. */
#ifndef PAWL_CLI_SEARCH_SYNC_H
#define PAWL_CLI_SEARCH_SYNC_H

#include "cli.h"

struct search_sync;

/* document: with its defaults (tune_spec_check). *ret is NULL if the document names no place; the
 * other functions accept NULL. */
int search_sync_open(struct cli *cli, const char *document, struct search_sync **ret, struct pawl_error *err);
/* Fetches the search from its place if none exists here. A place without a search is not an
 * error. */
int search_sync_fetch(struct search_sync *s, struct pawl_error *err);
/* Call before a new search: PAWL_EEXISTS if its place already has something that it would
 * overwrite. Hosts of rsync and places of external commands are not checked. */
int search_sync_check(struct search_sync *s, struct pawl_error *err);
/* Syncs once, so that a place that cannot be written to is reported before any trial runs. Then
 * starts a thread that syncs. */
int search_sync_begin(struct search_sync *s, struct pawl_error *err);
/* Requests a sync soon, because something worth saving was written. */
void search_sync_request(struct search_sync *s);
/* Ends the thread and syncs for the last time. If this succeeds, earlier failures do not matter. */
int search_sync_end(struct search_sync *s, struct pawl_error *err);
/* Ends without a last sync; a running one is cancelled. *s may be NULL. */
void search_sync_close(struct search_sync **s);
/* The place, for messages. */
const char *search_sync_place(const struct search_sync *s);

#endif
