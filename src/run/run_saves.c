/* SPDX-License-Identifier: Apache-2.0 */
/* run_saves: see run_saves.h. */
#include "run/run_saves.h"

#include "run/ticket.h"

void
run_saves_set_failed(struct run_saves *s, struct pawl_ticket *ticket)
{
	pthread_mutex_lock(&s->lock);
	struct pawl_ticket **last = &s->failed;

	while (*last)
		last = &(*last)->next_failed;
	*last = ticket_ref(ticket);
	pthread_mutex_unlock(&s->lock);
}

static struct pawl_ticket *
take_first(struct run_saves *s)
{
	pthread_mutex_lock(&s->lock);
	struct pawl_ticket *t = s->failed;

	if (t)
		s->failed = t->next_failed;
	pthread_mutex_unlock(&s->lock);
	return t;
}

int
run_saves_take_failed(struct run_saves *s, struct pawl_error *err)
{
	int code = 0;

	for (struct pawl_ticket *t; code == 0 && (t = take_first(s));) {
		if (ticket_take_error(t, err))
			code = t->code;
		pawl_ticket_free(t);
	}
	return code;
}

void
run_saves_drop_failed(struct run_saves *s)
{
	for (struct pawl_ticket *t; (t = take_first(s));)
		pawl_ticket_free(t);
}
