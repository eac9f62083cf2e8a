/* SPDX-License-Identifier: Apache-2.0 */
/* expr: a recursive descent over one line of arithmetic. Called by space.c; calls nothing but the lookup. */
#include "expr.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune_err.h"

#define MAX_DEPTH 64
#define MAX_NAME 256

struct parser {
	const char *text, *at;
	expr_lookup_fn *lookup;
	void *arg;
	unsigned depth;
	struct pawl_error *err;
	int code;
};

static double
fail_at(struct parser *p, const char *expected)
{
	if (p->code == 0)
		p->code = tune_fail(p->err, PAWL_EUSAGE, "expression '%s': expected %s at position %zu, found %s%.12s",
		                    p->text, expected, (size_t)(p->at - p->text) + 1, *p->at ? "" : "its end", p->at);
	return 0;
}

/* isspace and friends go by the locale. */
static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
accept(struct parser *p, const char *word)
{
	p->at += strspn(p->at, " \t");
	if (strncmp(p->at, word, strlen(word)) != 0)
		return false;
	p->at += strlen(word);
	return true;
}

static double parse_sum(struct parser *p);

static double
call1(double (*f)(double), const double *args)
{
	return f(args[0]);
}

static double
apply(struct parser *p, const char *name)
{
	static const struct {
		const char *name;
		double (*f)(double);
	} one[] = {{"abs", fabs},  {"floor", floor}, {"ceil", ceil}, {"round", rint}, {"int", trunc},
	           {"sqrt", sqrt}, {"exp", exp},     {"log", log},   {"log2", log2},  {"log10", log10}};
	static const struct {
		const char *name;
		double (*f)(double, double);
	} two[] = {{"min", fmin}, {"max", fmax}, {"pow", pow}};
	double args[2] = {0};
	size_t n = 0;

	do {
		if (n == 2)
			return fail_at(p, "one or two arguments");
		args[n++] = parse_sum(p);
	} while (p->code == 0 && accept(p, ","));
	if (p->code == 0 && !accept(p, ")"))
		return fail_at(p, "')'");
	for (size_t i = 0; i < sizeof(one) / sizeof(one[0]); i++)
		if (strcmp(name, one[i].name) == 0 && n == 1)
			return call1(one[i].f, args);
	for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++)
		if (strcmp(name, two[i].name) == 0 && n == 2)
			return two[i].f(args[0], args[1]);
	return fail_at(p, "a known function with as many arguments as it takes before");
}

static double
parse_name(struct parser *p)
{
	char name[MAX_NAME];
	const char *path = name, *begin = p->at;
	size_t n = 0;
	double value;

	while (is_letter(*p->at) || is_digit(*p->at) || *p->at == '.') {
		if (n + 1 == sizeof(name))
			return fail_at(p, "a shorter name");
		name[n++] = *p->at == '.' ? '/' : *p->at;
		p->at++;
	}
	name[n] = '\0';
	if (accept(p, "("))
		return apply(p, name);
	if (strncmp(path, "config/", 7) == 0)
		path += 7;
	if (p->lookup && p->lookup(p->arg, path, &value))
		return value;
	if (strcmp(name, "pi") == 0)
		return 3.14159265358979323846;
	if (strcmp(name, "e") == 0)
		return 2.71828182845904523536;
	p->at = begin;
	return fail_at(p, "a number of the configuration that is known before this one");
}

/* strtod wants the locale's point. */
static double
parse_number(struct parser *p)
{
	char digits[64];
	size_t n = strspn(p->at, "0123456789.");
	double value;
	char *end;

	if ((p->at[n] == 'e' || p->at[n] == 'E') &&
	    is_digit(p->at[n + 1 + (p->at[n + 1] == '-' || p->at[n + 1] == '+')])) {
		n += 2;
		n += strspn(p->at + n, "0123456789");
	}
	if (n >= sizeof(digits))
		return fail_at(p, "a shorter number");
	memcpy(digits, p->at, n);
	digits[n] = '\0';
	end = strchr(digits, '.');
	if (end)
		*end = localeconv()->decimal_point[0];
	value = strtod(digits, &end);
	if (*end != '\0' || n == 0)
		return fail_at(p, "a number");
	p->at += n;
	return value;
}

static double
parse_atom(struct parser *p)
{
	double value = 0;

	p->at += strspn(p->at, " \t");
	if (++p->depth > MAX_DEPTH)
		value = fail_at(p, "less nesting");
	else if (accept(p, "+"))
		value = parse_atom(p);
	else if (accept(p, "(")) {
		value = parse_sum(p);
		if (p->code == 0 && !accept(p, ")"))
			fail_at(p, "')'");
	} else if (is_digit(*p->at) || *p->at == '.') {
		value = parse_number(p);
	} else if (is_letter(*p->at)) {
		value = parse_name(p);
	} else {
		fail_at(p, "a number, a name or '('");
	}
	p->depth--;
	return value;
}

/* a ** b binds tighter than a sign before it and looks to the right: -2 ** 2 = -4, 2 ** 3 ** 2 = 512. */
static double
parse_power(struct parser *p)
{
	double value;

	if (++p->depth > MAX_DEPTH)
		return fail_at(p, "less nesting");
	p->at += strspn(p->at, " \t");
	if (accept(p, "-")) {
		value = -parse_power(p);
	} else {
		value = parse_atom(p);
		if (p->code == 0 && accept(p, "**"))
			value = pow(value, parse_power(p));
	}
	p->depth--;
	return value;
}

static double
parse_product(struct parser *p)
{
	double value = parse_power(p), by;

	while (p->code == 0) {
		if (accept(p, "//")) {
			value = floor(value / parse_power(p));
		} else if (accept(p, "/")) {
			value /= parse_power(p);
		} else if (accept(p, "%")) { /* the sign of the divisor, as in Python */
			by = parse_power(p);
			value -= by * floor(value / by);
		} else if (accept(p, "*")) {
			value *= parse_power(p);
		} else {
			break;
		}
	}
	return value;
}

static double
parse_sum(struct parser *p)
{
	double value = parse_product(p);

	while (p->code == 0) {
		if (accept(p, "+"))
			value += parse_product(p);
		else if (accept(p, "-"))
			value -= parse_product(p);
		else
			break;
	}
	return value;
}

int
expr_value(const char *text, expr_lookup_fn *lookup, void *arg, double *ret, struct pawl_error *err)
{
	struct parser p = {.text = text, .at = text, .lookup = lookup, .arg = arg, .err = err};
	const double value = parse_sum(&p);

	p.at += strspn(p.at, " \t");
	if (p.code == 0 && *p.at)
		fail_at(&p, "an operator or the end");
	if (p.code == 0 && !isfinite(value))
		p.code =
			tune_fail(err, PAWL_EUSAGE, "expression '%s': expected a finite number, found %g", text, value);
	if (p.code == 0)
		*ret = value;
	return p.code;
}
