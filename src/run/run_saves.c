/* SPDX-License-Identifier: Apache-2.0 */
/* run_saves: see run_saves.h. */
#include "run/run_saves.h"

#include "run/ticket.h"

void
run_saves_set_failed(struct run_saves *s, struct pawl_ticket *ticket)
{
	pthread_mutex_lock(&s->lock);
	if (!s->failed)
		s->failed = ticket_ref(ticket);
	pthread_mutex_unlock(&s->lock);
}

int
run_saves_take_failed(struct run_saves *s, struct pawl_error *err)
{
	int code = 0;

	pthread_mutex_lock(&s->lock);
	struct pawl_ticket *t = s->failed;

	s->failed = NULL;
	pthread_mutex_unlock(&s->lock);
	if (t && ticket_take_error(t, err))
		code = t->code;
	pawl_ticket_free(t);
	return code;
}
