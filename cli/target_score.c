/* SPDX-License-Identifier: Apache-2.0 */
/* target_score: the metrics that decide which checkpoint is the best; see target.h. */
#include <string.h>

#include "base/mem.h"
#include "base/names.h"
#include "target.h"

int
target_score(struct cli *cli, const struct score *score, struct pawl_retention *policy, struct pawl_error *err)
{
	int *orders;

	if (score->order.n > score->by.n)
		return err_set(err, PAWL_EUSAGE, "--order %s needs --by METRIC", score->order.items[score->by.n]);
	if (score->by.n == 0)
		return 0;
	orders = keep_alloc(&cli->keep, score->by.n, sizeof(*orders));
	for (size_t i = 0; i < score->by.n; i++)
		orders[i] = i < score->order.n && strcmp(score->order.items[i], "min") == 0 ? -1 : 1;
	policy->score_attributes = score->by.items;
	policy->score_orders = orders;
	policy->n_scores = score->by.n;
	return 0;
}

/* "accuracy, loss, ... and 3 more": each metric once. */
static const char *
metrics_of(struct cli *cli, const struct pawl_list *list)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const char **names;
	size_t n = 0, most = 0;

	for (size_t i = 0; i < pawl_list_count(list); i++)
		most += pawl_list_get(list, i)->n_metrics;
	names = keep_alloc(&cli->keep, most + 1, sizeof(*names));
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		for (size_t m = 0; m < info->n_metrics; m++) {
			const char *name = term_clean(&cli->keep, info->metrics[m].name);
			size_t k = 0;

			while (k < n && strcmp(names[k], name) != 0)
				k++;
			names[k] = name;
			n += k == n;
		}
	}
	names_put(&text, names, n);
	return keep_printf(&cli->keep, "%s", buf_str(&text));
}

int
target_check_metrics(struct cli *cli, struct pawl *run, const struct score *score, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	int rc = pawl_list_open(run, 0, &list, err);

	if (rc < 0 || pawl_list_count(list) == 0)
		return rc;
	for (size_t by = 0; by < score->by.n; by++) {
		bool is_known = false;

		for (size_t i = 0; i < pawl_list_count(list) && !is_known; i++) {
			const struct pawl_info *info = pawl_list_get(list, i);

			for (size_t m = 0; m < info->n_metrics; m++)
				is_known = is_known || strcmp(info->metrics[m].name, score->by.items[by]) == 0;
		}
		if (!is_known) {
			const char *names = metrics_of(cli, list);

			return err_set(err, PAWL_EUSAGE, "--by %s: no checkpoint of %s has this metric; %s%s",
			               score->by.items[by], pawl_root(run),
			               *names != '\0' ? "there are: " : "they have none", names);
		}
	}
	return 0;
}
