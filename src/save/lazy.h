/* SPDX-License-Identifier: Apache-2.0 */
/* lazy: which tensors of a save are copied after its call has returned, and that none changed before it was copied. */
#ifndef PAWL_LAZY_H
#define PAWL_LAZY_H

#include "save/save.h"

/* Decides whether the save is lazy, and which tensors it copies later. */
int lazy_decide(struct save *s, const struct pawl_save_opts *opts, struct pawl_error *err);
/* Is tensor i copied while the caller waits, though the rest is not? */
static inline bool
lazy_at_once(const struct save *s, size_t i)
{
	return s->later && !s->later[i];
}
/* At the end of the call, when what is copied at once has been copied: notes how the other tensors look. */
int lazy_note(struct save *s, struct pawl_error *err);
/* All has been copied (on one thread): fails the save if a tensor has changed since the call. True: the sources must be
 * read again by lazy_check_units, too. */
bool lazy_verify(struct save *s);
/* Reads what was copied later once more, and fails the save if it is not what was copied. On any number of threads. */
void lazy_check_units(struct save *s);
/* The same for one unit, whatever it holds. */
int lazy_check_unit(struct save *s, const struct save_unit *u, struct pawl_error *err);

#endif
