/* SPDX-License-Identifier: Apache-2.0 */
/* lazy: decides which tensors are copied after the call has returned, and checks that none changed
 * before its copy. */
#ifndef PAWL_LAZY_H
#define PAWL_LAZY_H

#include "save/save.h"

/* Decides whether the save is lazy, and which tensors it copies later. */
int lazy_decide(struct save_image *m, struct save_request *request, const struct pawl_save_opts *opts,
                struct pawl_error *err);
/* Is tensor i of a lazy save copied during the call? */
static inline bool
lazy_at_once(const struct save_image *m, size_t i)
{
	return m->lazy.later && !m->lazy.later[i];
}
/* Before the caller may change the tensors that are copied later: asks it whether it has done so
 * already, and fails the save then. Later calls do nothing. */
void lazy_ask(struct save_image *m);
/* Before the tensors that are copied during the call: takes samples of them. */
int lazy_begin(struct save_image *m, struct pawl_error *err);
/* At the end of the call, after that copy: refuses it if one of them has changed, and takes samples
 * of the others. */
int lazy_note(struct save_image *m, struct pawl_error *err);
/* After the copy, on one thread: fails the save if a tensor has changed since the call. True:
 * lazy_check_units must read the sources again. */
bool lazy_verify(struct save_image *m);
/* Reads the tensors that were copied later again; fails the save if they differ from the copy. On
 * any number of threads. */
void lazy_check_units(struct save_image *m);

#endif
