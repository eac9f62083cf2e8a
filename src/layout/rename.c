/* SPDX-License-Identifier: Apache-2.0 */
/* rename: see rename.h. */
#include "layout/rename.h"

#include <string.h>

#include "base/err.h"

/* What the wildcards of a glob matched. */
struct groups {
	struct {
		const char *begin;
		size_t len;
	} at[RENAME_MAX_GROUPS];
	unsigned n;
};

/* The glob ends at its '='. true: the complete text matches. Going back to the last '*' alone is
 * enough: earlier ones never need to take more than they took first. */
static bool
match_glob(const char *glob, const char *end, const char *text, struct groups *g)
{
	const char *star = NULL, *star_text = NULL, *p = glob, *t = text;
	unsigned star_n = 0; /* groups up to and including the last '*' */

	g->n = 0;
	for (;;) {
		if (p < end && *p == '*') {
			g->at[g->n].begin = t;
			g->at[g->n++].len = 0;
			star = ++p;
			star_text = t;
			star_n = g->n;
		} else if (p == end && *t == '\0') {
			return true;
		} else if (p < end && *t != '\0' && *p == '?') {
			g->at[g->n].begin = t;
			g->at[g->n++].len = 1;
			p++;
			t++;
		} else if (p < end && *t != '\0' && *p == *t) {
			p++;
			t++;
		} else {
			if (!star || *star_text == '\0')
				return false;
			p = star;
			t = ++star_text;
			g->n = star_n;
			g->at[star_n - 1].len++;
		}
	}
}

/* Reads one group or brace of a template at *at, and moves *at past it. *ret: the group, or -1 for
 * a brace; false: neither. */
static bool
take_group(const char **at, int *ret)
{
	const char *p = *at;
	int n = 0;

	if (p[0] == p[1]) { /* {{ or }} */
		*ret = -1;
		*at = p + 2;
		return true;
	}
	if (*p++ != '{' || *p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9' && n < 1000; p++)
		n = n * 10 + (*p - '0');
	*ret = n;
	*at = p + 1;
	return *p == '}';
}

int
rename_check(const char *rule, struct pawl_error *err)
{
	const char *equals = strchr(rule, '=');
	int n_groups = 0, n_stars = 0, group;

	if (!equals || equals == rule || !equals[1])
		return err_set(err, PAWL_EUSAGE, "rename '%s': expected GLOB=TEMPLATE, such as 'model.*={1}'", rule);
	for (const char *p = rule; p < equals; p++)
		n_groups += *p == '*' || *p == '?';
	if (n_groups > (int)RENAME_MAX_GROUPS)
		return err_set(err, PAWL_EUSAGE, "rename '%s': %d wildcards, at most %u are possible", rule, n_groups,
		               RENAME_MAX_GROUPS);
	for (const char *p = equals + 1; *p;) {
		if (*p == '*') {
			group = ++n_stars;
			p++;
		} else if (*p != '{' && *p != '}') {
			p++;
			continue;
		} else if (!take_group(&p, &group))
			return err_set(err, PAWL_EUSAGE, "rename '%s': expected {1}, {2}, .. or {{ for a brace", rule);
		if (group > n_groups)
			return err_set(err, PAWL_EUSAGE, "rename '%s': {%d}, but its glob has %d wildcard%s", rule,
			               group, n_groups, n_groups == 1 ? "" : "s");
	}
	return 0;
}

static void
fill_template(const char *template, const char *name, const struct groups *g, struct buf *out)
{
	int n_stars = 0;

	for (const char *p = template; *p;) {
		const char brace = *p;
		int group;

		if (*p == '*') {
			group = ++n_stars;
			p++;
		} else if (*p != '{' && *p != '}') {
			buf_putc(out, *p++);
			continue;
		} else if (!take_group(&p, &group))
			return; /* was checked before */
		if (group < 0)
			buf_putc(out, brace);
		else if (group == 0)
			buf_puts(out, name);
		else
			buf_put(out, g->at[group - 1].begin, g->at[group - 1].len);
	}
}

size_t
rename_apply(const char *const *rules, size_t n_rules, const char *name, struct buf *out)
{
	struct groups g;

	for (size_t i = 0; i < n_rules; i++) {
		const char *equals = strchr(rules[i], '=');

		if (equals && match_glob(rules[i], equals, name, &g)) {
			fill_template(equals + 1, name, &g, out);
			return i;
		}
	}
	buf_puts(out, name);
	return n_rules;
}
