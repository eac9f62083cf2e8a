/* SPDX-License-Identifier: Apache-2.0 */
/* places: what a path holds, and the runs, checkpoints and files below it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"

/* A path in the scratch folder; valid until the fourth call after this one. */
static const char *
in(const struct small_run *r, const char *name)
{
	static char paths[4][200];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", r->root, name);
	return path;
}

/* A run of two checkpoints, closed. */
static void
make_run(struct small_run *r, const char *name)
{
	char root[200];

	snprintf(root, sizeof(root), "%s", in(r, name));
	r->opts.root = root;
	small_open(r);
	small_save(r, 10, 0.1);
	small_save(r, 20, 0.2);
	pawl_close(r->run, NULL);
	r->run = NULL;
}

static void
make_file(const char *path)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fputs("12345", file) < 0, 0);
	assert_int_equal(fclose(file), 0);
}

static void
test_the_kind_of_a_place(void **state)
{
	struct small_run *r = *state;

	make_run(r, "source");
	assert_int_equal(pawl_kind_of(in(r, "source"), NULL, NULL), PAWL_KIND_RUN);
	assert_int_equal(pawl_kind_of(in(r, "source/checkpoints/checkpoint_000001"), NULL, NULL), PAWL_KIND_CHECKPOINT);
	assert_int_equal(pawl_kind_of(in(r, "none"), NULL, NULL), PAWL_KIND_NOTHING);
	assert_int_equal(mkdir(in(r, "empty"), 0700), 0);
	assert_int_equal(pawl_kind_of(in(r, "empty"), NULL, NULL), PAWL_KIND_NOTHING);
	assert_int_equal(pawl_kind_of(r->root, NULL, NULL), PAWL_KIND_OTHER);
	FAILS(PAWL_EUSAGE, "unknown kind of store", pawl_kind_of("gopher://x", NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_kind_of(NULL, NULL, err));
}

static void
test_a_run_without_run_json_differs_from_a_folder_of_files(void **state)
{
	struct small_run *r = *state;

	make_run(r, "lost");
	assert_int_equal(unlink(in(r, "lost/run.json")), 0);
	assert_int_equal(pawl_kind_of(in(r, "lost"), NULL, NULL), PAWL_KIND_RUN);
	assert_int_equal(mkdir(in(r, "composer"), 0700), 0);
	assert_int_equal(mkdir(in(r, "composer/checkpoints"), 0700), 0);
	assert_int_equal(pawl_kind_of(in(r, "composer"), NULL, NULL), PAWL_KIND_RUN);
	make_file(in(r, "composer/checkpoints/ep0-ba1-rank0.pt"));
	assert_int_equal(mkdir(in(r, "composer/checkpoints/.notes"), 0700), 0);
	assert_int_equal(pawl_kind_of(in(r, "composer"), NULL, NULL), PAWL_KIND_OTHER);
}

/* "run:R one:C files/a.pt:5 files/latest:L": path and kind, or size, of each place. */
static const char *
listed(const char *root, int recursive)
{
	static char text[400];
	struct pawl_places *places = NULL;
	size_t len = 0;

	text[0] = '\0';
	OK(pawl_places_open(root, recursive, &places, err));
	for (size_t i = 0; i < pawl_places_count(places); i++) {
		const struct pawl_place *place = pawl_places_get(places, i);
		char what[24] = "L";

		assert_null(place->problem);
		if (place->kind != PAWL_KIND_OTHER)
			snprintf(what, sizeof(what), "%c", "?RC?S"[place->kind]);
		else if (!place->is_link)
			snprintf(what, sizeof(what), "%d", (int)place->bytes);
		assert_int_equal(place->kind == PAWL_KIND_OTHER, place->unix_seconds > 0);
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s:%s", i ? " " : "", place->path, what);
	}
	assert_null(pawl_places_get(places, pawl_places_count(places)));
	pawl_places_free(places);
	return text;
}

/* In seconds, of the last change. */
static double
age_of_search(const char *root, const char *name)
{
	struct pawl_places *places = NULL;
	double age = -1;

	OK(pawl_places_open(root, 0, &places, err));
	for (size_t i = 0; i < pawl_places_count(places); i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (strcmp(place->path, name) == 0 && place->unix_seconds > 0)
			age = (double)time(NULL) - place->unix_seconds;
	}
	pawl_places_free(places);
	return age;
}

static void
test_runs_checkpoints_and_files_below_a_folder_in_natural_order(void **state)
{
	struct small_run *r = *state;

	make_run(r, "run10");
	make_run(r, "run2");
	assert_int_equal(mkdir(in(r, "deep"), 0700), 0);
	make_run(r, "deep/run");
	assert_int_equal(rename(in(r, "deep/run/checkpoints/checkpoint_000001"), in(r, "kept")), 0);
	make_file(in(r, "deep/a.pt"));
	make_file(in(r, "b.pt"));
	make_file(in(r, ".hidden"));
	assert_int_equal(symlink("run2", in(r, "link")), 0);
	assert_string_equal(listed(r->root, 0), "b.pt:5 kept:C link:L run2:R run10:R");
	assert_string_equal(listed(r->root, 1), "b.pt:5 deep/a.pt:5 deep/run:R kept:C link:L run2:R run10:R");
	assert_string_equal(listed(in(r, "kept"), 1), ":C");
}

/* Of the links below a folder: "latest.pt.symlink -> d/b1.pt". */
static const char *
targets(const char *root)
{
	static char text[400];
	struct pawl_places *places = NULL;
	size_t len = 0;

	text[0] = '\0';
	OK(pawl_places_open(root, 1, &places, err));
	for (size_t i = 0; i < pawl_places_count(places); i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (place->is_link)
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s -> %s", len ? ", " : "",
			                        place->path, place->target ? place->target : "?");
		else
			assert_null(place->target);
	}
	pawl_places_free(places);
	return text;
}

static void
write_file(const char *path, const char *text, size_t times)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	for (size_t i = 0; i < times; i++)
		fputs(text, file);
	fclose(file);
}

static void
test_R89_a_text_object_that_is_a_link_has_the_name_that_it_holds(void **state)
{
	struct small_run *r = *state;

	assert_int_equal(mkdir(in(r, "d"), 0700), 0);
	make_file(in(r, "d/b1.pt"));
	write_file(in(r, "d/latest.pt.symlink"), "d/b1.pt\n", 1);
	write_file(in(r, "d/empty.symlink"), "", 0);
	write_file(in(r, "d/long.symlink"), "0123456789", 410);
	assert_int_equal(symlink("b1.pt", in(r, "d/real.pt")), 0);
	assert_string_equal(listed(in(r, "d"), 0),
	                    "b1.pt:5 empty.symlink:L latest.pt.symlink:L long.symlink:L real.pt:L");
	assert_string_equal(targets(r->root), "d/empty.symlink -> ?, d/latest.pt.symlink -> d/b1.pt, "
	                                      "d/long.symlink -> ?, d/real.pt -> ?");
}

static void
test_the_kind_of_a_folder_with_many_names(void **state)
{
	struct small_run *r = *state;
	char name[40];

	make_run(r, "run");
	assert_int_equal(rename(in(r, "run/checkpoints/checkpoint_000001"), in(r, "kept")), 0);
	assert_int_equal(mkdir(in(r, "other"), 0700), 0);
	for (int i = 0; i < 2100; i++) {
		snprintf(name, sizeof(name), "%s/%d.pt", i % 2 ? "kept" : "other", i);
		make_file(in(r, name));
	}
	assert_string_equal(listed(r->root, 0), "kept:C run:R");
	make_file(in(r, "other/experiment.json"));
	assert_string_equal(listed(r->root, 0), "kept:C other:S run:R");
	make_file(in(r, "other/journal"));
	small_age(r, "other/journal", 1000);
	assert_true(age_of_search(r->root, "other") > 900);
}

static void
test_searches_below_a_folder_are_listed_with_what_their_trials_hold(void **state)
{
	struct small_run *r = *state;

	assert_int_equal(mkdir(in(r, "tune"), 0700), 0);
	assert_int_equal(mkdir(in(r, "tune/trial"), 0700), 0);
	make_file(in(r, "tune/experiment.json"));
	make_run(r, "tune/trial/run");
	assert_string_equal(listed(r->root, 0), "tune:S");
	assert_string_equal(listed(r->root, 1), "tune:S tune/experiment.json:5 tune/trial/run:R");
	assert_string_equal(listed(in(r, "tune"), 0), "experiment.json:5");
}

static void
test_the_folder_checkpoints_is_looked_into(void **state)
{
	struct small_run *r = *state;

	assert_int_equal(mkdir(in(r, "checkpoints"), 0700), 0);
	assert_int_equal(mkdir(in(r, "checkpoints/more"), 0700), 0);
	make_file(in(r, "checkpoints/ep0-ba1-rank0.pt"));
	make_file(in(r, "checkpoints/more/x.pt"));
	assert_string_equal(listed(r->root, 0), "checkpoints/ep0-ba1-rank0.pt:5");
	assert_string_equal(listed(r->root, 1), "checkpoints/ep0-ba1-rank0.pt:5 checkpoints/more/x.pt:5");
}

static void
test_wrong_calls_are_refused(void **state)
{
	struct small_run *r = *state;
	struct pawl_places *places = NULL;

	FAILS(PAWL_ENOTFOUND, "none", pawl_places_open(in(r, "none"), 0, &places, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_places_open(NULL, 0, &places, err));
	assert_null(places);
	pawl_places_free(NULL);
	assert_string_equal(listed(r->root, 0), "");
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_the_kind_of_a_place),
		CASE(test_a_run_without_run_json_differs_from_a_folder_of_files),
		CASE(test_runs_checkpoints_and_files_below_a_folder_in_natural_order),
		CASE(test_R89_a_text_object_that_is_a_link_has_the_name_that_it_holds),
		CASE(test_the_kind_of_a_folder_with_many_names),
		CASE(test_searches_below_a_folder_are_listed_with_what_their_trials_hold),
		CASE(test_the_folder_checkpoints_is_looked_into),
		CASE(test_wrong_calls_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
