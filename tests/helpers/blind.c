/* SPDX-License-Identifier: Apache-2.0 */
/* blind: the comparisons after the copy of a lazy save, which find no change. Linked by --wrap. */
#include <stdbool.h>

#include "save/lazy.h"

void __wrap_lazy_ask(struct save_image *m);
bool __wrap_lazy_verify(struct save_image *m);
int __wrap_lazy_check_unit(struct save_image *m, const struct save_unit *u, struct pawl_error *err);

void
__wrap_lazy_ask(struct save_image *m)
{
	(void)m;
}

bool
__wrap_lazy_verify(struct save_image *m)
{
	(void)m;
	return false;
}

int
__wrap_lazy_check_unit(struct save_image *m, const struct save_unit *u, struct pawl_error *err)
{
	(void)m;
	(void)u;
	(void)err;
	return 0;
}
