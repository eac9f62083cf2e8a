/* SPDX-License-Identifier: Apache-2.0 */
/* search_sync: a search's folder is brought to the place that its document names ("sync"), and from there. */
#ifndef PAWL_CLI_SEARCH_SYNC_H
#define PAWL_CLI_SEARCH_SYNC_H

#include "cli.h"

struct search_sync;

/* document: with its defaults (tune_spec_check). *ret is NULL where it names no place, which all others accept. */
int search_sync_open(struct cli *cli, const char *document, struct search_sync **ret, struct pawl_error *err);
/* Brings the search here from its place if none lies here; that there is none at its place either is no error. */
int search_sync_fetch(struct search_sync *s, struct pawl_error *err);
/* Before a new search: PAWL_EEXISTS where its place has something already that it would write over. Hosts of rsync and places
 * of commands are not looked at. */
int search_sync_check(struct search_sync *s, struct pawl_error *err);
/* Syncs once, so that a place that cannot be written to is told before anything runs; from then on a thread does. */
int search_sync_begin(struct search_sync *s, struct pawl_error *err);
/* Something has come that is worth bringing away soon. */
void search_sync_request(struct search_sync *s);
/* The last sync; ends the thread. What went wrong before it is over if this one succeeds. */
int search_sync_end(struct search_sync *s, struct pawl_error *err);
/* Without a last sync; one that is on its way is ended. NULL is fine. */
void search_sync_close(struct search_sync **s);
/* Where to, for people. */
const char *search_sync_place(const struct search_sync *s);

#endif
