/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heat2d: heat spreading over a plate, on a grid of MPI processes, saved with pawl.
 *
 *     mpicc -std=gnu17 -O2 -ffp-contract=off -Iinclude examples/mpi/heat2d.c build/src/libpawl.a \
 *         -lpthread -lm -lz -lbz2 -llz4 -llzma -lzstd -lcurl -lcrypto -lexpat -o heat2d
 *     mpirun -n 4 heat2d [--size ROWSxCOLS] [--steps N] [--every K] [--die STEP:RANK|STEP:all] \
 *         RUN_FOLDER
 *
 * Each rank has a box of the plate with a border of one cell around it, which its neighbours fill
 * before every step. It gives pawl that box in place (strides step over the border) with its place
 * in the plate. Together the boxes are one tensor. Kill a rank or the complete job, and start it
 * again on as many ranks as you like: it resumes after the last checkpoint. The plate ends as that
 * of a run that was never disturbed, bit for bit. Every cell is computed from the same numbers in
 * the same order, whatever the boxes are.
 *
 * --die kills one rank (which ends the job) or all of them (SIGKILL) after a step. If a save was
 * due after that step, it kills them in the middle of the save.
 *
 * The parts that show pawl: state_of (what is saved), save, load, and the loop in simulate. pawl
 * itself uses no MPI.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>
#include <pawl.h>

struct options {
	int rows, cols;
	int64_t steps, every, die_at;
	int die_rank; /* -1 = all */
	const char *folder;
};

struct plate {
	MPI_Comm grid;
	MPI_Datatype column; /* of a box, without its border */
	int rank, world;
	int up, down, left, right; /* neighbours, MPI_PROC_NULL at the rim */
	int rows, cols;            /* of the complete plate */
	int row, col, n, m;        /* this rank's box: where it begins, and its size */
	double *now, *next;        /* (n + 2) x (m + 2) cells */
	int64_t step;              /* steps that are done */
	int64_t cells;             /* this rank's own: how many cells it has worked out so far */
};

static size_t
at(const struct plate *p, int i, int j)
{
	return (size_t)(i + 1) * (size_t)(p->m + 2) + (size_t)(j + 1);
}

/* ------------------------------------------------------------------ what is saved */

static int
key(struct pawl_state *state, const char *name, struct pawl_error *err)
{
	struct pawl_scalar scalar = {.type = PAWL_STR, .ptr = name, .len = strlen(name)};

	return pawl_state_key(state, &scalar, err);
}

/* {"heat": this rank's box of the plate, "cells": a value of its own}. The box is borrowed: saving
 * reads it, restoring writes into it. */
static int
build(const struct plate *p, struct pawl_state *state, struct pawl_error *err)
{
	const uint64_t whole[] = {(uint64_t)p->rows, (uint64_t)p->cols}, box[] = {(uint64_t)p->n, (uint64_t)p->m};
	const uint64_t place[] = {(uint64_t)p->row, (uint64_t)p->col};
	const int64_t strides[] = {p->m + 2, 1};
	const struct pawl_scalar cells = {.type = PAWL_INT, .i = p->cells};
	struct pawl_tensor heat = PAWL_TENSOR_INIT;
	int code;

	heat.dtype = PAWL_F64;
	heat.ndim = 2;
	heat.shape = box;
	heat.strides = strides;
	heat.data = p->now + at(p, 0, 0);
	heat.global_shape = whole;
	heat.offsets = place;
	if ((code = pawl_state_set_rank(state, (uint32_t)p->rank, (uint32_t)p->world, err)) < 0 ||
	    (code = pawl_state_begin(state, PAWL_DICT, err)) < 0 || (code = key(state, "heat", err)) < 0 ||
	    (code = pawl_state_add_tensor(state, &heat, err)) < 0 || (code = key(state, "cells", err)) < 0 ||
	    (code = pawl_state_begin(state, PAWL_PER_RANK, err)) < 0 ||
	    (code = pawl_state_add(state, &cells, err)) < 0 || (code = pawl_state_end(state, err)) < 0)
		return code;
	return pawl_state_end(state, err);
}

static int
state_of(const struct plate *p, struct pawl_state **ret, struct pawl_error *err)
{
	struct pawl_state *state = NULL;
	int code = pawl_state_new(&state, err);

	if (code < 0)
		return code;
	code = build(p, state, err);
	if (code < 0) {
		pawl_state_free(state);
		return code;
	}
	*ret = state;
	return 0;
}

static int
save(struct pawl *run, const struct plate *p, struct pawl_error *err)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *state = NULL;
	int code = state_of(p, &state, err);

	if (code < 0)
		return code;
	opts.step = p->step;
	code = pawl_save(run, &opts, state, NULL,
	                 err); /* returns as soon as the box has been copied; waits for no rank */
	pawl_state_free(state);
	return code;
}

/* Fills the box from the newest checkpoint, whatever boxes it was saved in. Leaves a fresh plate
 * unchanged. */
static int
load(struct pawl *run, struct plate *p, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restored = NULL;
	struct pawl_state *live = NULL;
	int code = state_of(p, &live, err);

	if (code < 0)
		return code;
	opts.rank_values = PAWL_RANK_VALUES_DROP; /* on another number of ranks the count of cells begins anew */
	code = pawl_restore(run, &opts, live, &restored, err);
	pawl_state_free(live);
	if (code == PAWL_ENOTFOUND)
		return 0; /* a fresh run */
	if (code < 0)
		return code;

	const struct pawl_info *info = pawl_restore_info(restored);
	const struct pawl_node *own = pawl_node_own(pawl_state_at(pawl_restore_state(restored), "cells"));

	p->step = info->step;
	if (own && pawl_node_type(own) == PAWL_INT)
		p->cells = pawl_node_scalar(own)->i;
	if (p->rank == 0) {
		printf("resumed after step %" PRId64 " of %" PRIu32 " ranks on %d ranks\n", p->step, info->world_size,
		       p->world);
		for (size_t i = 0; i < pawl_restore_fallback_count(restored); i++)
			printf("passed over %s\n", pawl_restore_fallback_get(restored, i));
		for (size_t i = 0; i < pawl_restore_report_count(restored); i++)
			printf("%s\n", pawl_restore_report_get(restored, i));
	}
	pawl_restore_close(restored);
	return 0;
}

static int
open_run(const struct plate *p, const char *folder, struct pawl **ret, struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_rank who = PAWL_RANK_INIT;
	int code = pawl_rank_identify(&who, err); /* what the launcher calls this start of the job */

	if (code < 0)
		return code;
	who.rank = p->rank; /* MPI knows best */
	who.world_size = p->world;
	opts.root = folder;
	opts.ranks.self = &who;
	opts.retention.keep_last = 2;
	opts.timeouts.commit_ms = 60000;
	return pawl_open(&opts, ret, err);
}

/* ------------------------------------------------------------------ the simulation */

/* Where part i of n cells begins when they are shared by `parts`. */
static int
cut(int n, int i, int parts)
{
	return (int)((int64_t)n * i / parts);
}

static bool
start(struct plate *p, const struct options *o)
{
	int dims[2] = {0, 0}, periods[2] = {0, 0}, place[2];

	p->rows = o->rows;
	p->cols = o->cols;
	MPI_Comm_size(MPI_COMM_WORLD, &p->world);
	MPI_Dims_create(p->world, 2, dims);
	MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &p->grid);
	MPI_Comm_rank(p->grid, &p->rank);
	MPI_Cart_coords(p->grid, p->rank, 2, place);
	MPI_Cart_shift(p->grid, 0, 1, &p->up, &p->down);
	MPI_Cart_shift(p->grid, 1, 1, &p->left, &p->right);
	p->row = cut(p->rows, place[0], dims[0]);
	p->n = cut(p->rows, place[0] + 1, dims[0]) - p->row;
	p->col = cut(p->cols, place[1], dims[1]);
	p->m = cut(p->cols, place[1] + 1, dims[1]) - p->col;
	if (p->rows < dims[0] || p->cols < dims[1]) {
		if (p->rank == 0)
			fprintf(stderr, "heat2d: a plate of %dx%d cells is too small for %dx%d ranks\n", p->rows,
			        p->cols, dims[0], dims[1]);
		return false;
	}
	MPI_Type_vector(p->n, 1, p->m + 2, MPI_DOUBLE, &p->column);
	MPI_Type_commit(&p->column);
	p->now = calloc(at(p, p->n + 1, 0), sizeof(double));
	p->next = calloc(at(p, p->n + 1, 0), sizeof(double));
	if (!p->now || !p->next)
		return false;
	for (int i = 0; i < p->n; i++) /* a hot spot, and a little of everything */
		for (int j = 0; j < p->m; j++) {
			int64_t y = p->row + i, x = p->col + j, dy = 3 * y - p->rows, dx = 2 * x - p->cols;
			p->now[at(p, i, j)] = (double)((y * 7919 + x * 104729) % 1009) / 1009 +
			                      (dy * dy + dx * dx < (int64_t)p->rows * p->rows / 4 ? 100 : 0);
		}
	return true;
}

/* The border of the box: the neighbours' outermost cells. The plate's own rim stays cold. */
static void
exchange(struct plate *p)
{
	double *u = p->now;

	MPI_Sendrecv(&u[at(p, 0, 0)], p->m, MPI_DOUBLE, p->up, 0, &u[at(p, p->n, 0)], p->m, MPI_DOUBLE, p->down, 0,
	             p->grid, MPI_STATUS_IGNORE);
	MPI_Sendrecv(&u[at(p, p->n - 1, 0)], p->m, MPI_DOUBLE, p->down, 1, &u[at(p, -1, 0)], p->m, MPI_DOUBLE, p->up, 1,
	             p->grid, MPI_STATUS_IGNORE);
	MPI_Sendrecv(&u[at(p, 0, 0)], 1, p->column, p->left, 2, &u[at(p, 0, p->m)], 1, p->column, p->right, 2, p->grid,
	             MPI_STATUS_IGNORE);
	MPI_Sendrecv(&u[at(p, 0, p->m - 1)], 1, p->column, p->right, 3, &u[at(p, 0, -1)], 1, p->column, p->left, 3,
	             p->grid, MPI_STATUS_IGNORE);
}

static void
step(struct plate *p)
{
	double *swapped = p->now;

	exchange(p);
	for (int i = 0; i < p->n; i++)
		for (int j = 0; j < p->m; j++) {
			const double *u = &p->now[at(p, i, j)];
			double around = (u[-(p->m + 2)] + u[p->m + 2]) + (u[-1] + u[1]);
			p->next[at(p, i, j)] = u[0] + 0.2 * (around - 4 * u[0]);
		}
	p->now = p->next;
	p->next = swapped;
	p->cells += (int64_t)p->n * p->m;
	p->step++;
}

/* A sum over all cells that does not depend on their order. Two plates with the same digest are the
 * same, bit for bit. */
static uint64_t
digest(const struct plate *p)
{
	uint64_t mine = 0, all = 0;

	for (int i = 0; i < p->n; i++)
		for (int j = 0; j < p->m; j++) {
			uint64_t bits, x = (uint64_t)(p->row + i) * (uint64_t)p->cols + (uint64_t)(p->col + j) + 1;
			memcpy(&bits, &p->now[at(p, i, j)], sizeof(bits));
			x = (bits ^ x * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
			mine += (x ^ x >> 29) * 0x94d049bb133111ebu;
		}
	MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, p->grid);
	return all;
}

static void
stop(struct plate *p)
{
	free(p->now);
	free(p->next);
	if (p->column != MPI_DATATYPE_NULL)
		MPI_Type_free(&p->column);
	MPI_Comm_free(&p->grid);
}

/* Opens the run and loads, on all ranks or on none: no rank is left waiting for another one's
 * border. */
static int
resume(struct plate *p, const char *folder, struct pawl **run, struct pawl_error *err)
{
	int code = open_run(p, folder, run, err), worst = 0;

	if (code == 0)
		code = load(*run, p, err);
	MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MIN, p->grid);
	if (worst < 0 && code == 0)
		snprintf(err->message, sizeof(err->message), "another rank could not resume");
	if (worst < 0) {
		pawl_close(*run, NULL);
		*run = NULL;
	}
	return worst;
}

static int
simulate(struct plate *p, struct pawl *run, const struct options *o, struct pawl_error *err)
{
	int code = 0;

	while (code == 0 && p->step < o->steps) {
		step(p);
		if (p->step % o->every == 0 || p->step == o->steps)
			code = save(run, p, err);
		if (p->step == o->die_at && (o->die_rank < 0 || o->die_rank == p->rank))
			raise(SIGKILL);
	}
	if (code < 0) {
		pawl_close(run, NULL);
		return code;
	}
	return pawl_close(run, err); /* waits until everything is durable, on all ranks */
}

/* ------------------------------------------------------------------ the command line */

static bool
read_option(const char *name, const char *value, struct options *o)
{
	if (strcmp(name, "--size") == 0)
		return sscanf(value, "%dx%d", &o->rows, &o->cols) == 2 && o->rows > 0 && o->cols > 0;
	if (strcmp(name, "--steps") == 0)
		return sscanf(value, "%" SCNd64, &o->steps) == 1;
	if (strcmp(name, "--every") == 0)
		return sscanf(value, "%" SCNd64, &o->every) == 1 && o->every > 0;
	if (strcmp(name, "--die") != 0)
		return false;
	const char *colon = strchr(value, ':');
	if (colon && strcmp(colon, ":all") == 0)
		return sscanf(value, "%" SCNd64, &o->die_at) == 1;
	return sscanf(value, "%" SCNd64 ":%d", &o->die_at, &o->die_rank) == 2 && o->die_rank >= 0;
}

static bool
read_options(int argc, char **argv, struct options *o)
{
	int i = 1;

	for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2)
		if (!read_option(argv[i], argv[i + 1], o))
			return false;
	o->folder = argv[i];
	return argc - i == 1;
}

int
main(int argc, char **argv)
{
	struct options o = {.rows = 240, .cols = 320, .steps = 200, .every = 20, .die_at = -1, .die_rank = -1};
	struct plate p = {.column = MPI_DATATYPE_NULL};
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	MPI_Init(&argc, &argv);
	if (!read_options(argc, argv, &o)) {
		fprintf(stderr,
		        "usage: %s [--size ROWSxCOLS] [--steps N] [--every K] [--die STEP:RANK|STEP:all] RUN_FOLDER\n",
		        argv[0]);
		MPI_Finalize();
		return 2;
	}
	if (!start(&p, &o)) {
		MPI_Finalize();
		return 2;
	}
	int code = resume(&p, o.folder, &run, &err);
	if (code < 0) {
		fprintf(stderr, "heat2d: rank %d: %s\n", p.rank, err.message);
		stop(&p);
		MPI_Finalize();
		return pawl_code_exit_status(code);
	}
	code = simulate(&p, run, &o, &err);
	if (code < 0) {
		fprintf(stderr, "heat2d: rank %d: %s\n", p.rank, err.message);
		MPI_Abort(MPI_COMM_WORLD, pawl_code_exit_status(code)); /* the others wait for this one's border */
	}
	uint64_t all = digest(&p);
	printf("rank %d: %" PRId64 " cells worked out\n", p.rank, p.cells);
	MPI_Barrier(p.grid);
	if (p.rank == 0)
		printf("plate %016" PRIx64 " after %" PRId64 " steps\n", all, p.step);
	stop(&p);
	MPI_Finalize();
	return 0;
}
