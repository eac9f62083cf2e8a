/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench: saves and restores a generated state in a folder. Compares the figures with the limits
 * of the machine, measured in the same rounds:
 *
 *     change the state -> save -> wait until durable -> restore, checked
 *     -> memcpy -> direct write -> direct read
 *
 * The first save also allocates memory and is shown separately. All other figures are medians over
 * the rounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err_path.h"
#include "base/fd.h"
#include "base/folder.h"
#include "base/os.h"
#include "base/text.h"
#include "cli.h"
#include "copy.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "limits.h"

#define BENCH_SIZE ((uint64_t)512 << 20)
#define BENCH_TENSORS 64
#define BENCH_ROUNDS 5
#define BENCH_LIMIT_BYTES ((uint64_t)512 << 20) /* of each measurement of the machine's limits */

struct bench_args {
	uint64_t size, tensors, rounds;
	const char *mode;
	bool recycle, keep;
};

static const struct operand operands[] = {{"FOLDER", OPERAND_FOLDER, 0, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"size", 's', OPT_BYTES, offsetof(struct bench_args, size), "SIZE", "size of the state (default: 512MiB)"},
	{"tensors", 't', OPT_COUNT, offsetof(struct bench_args, tensors), "N", "number of tensors (default: 64)"},
	{"repeat", 'r', OPT_COUNT, offsetof(struct bench_args, rounds), "N", "number of rounds (default: 5)"},
	{"mode", 0, OPT_TEXT, offsetof(struct bench_args, mode), "snapshot|ring|direct",
         "how to save (default: snapshot)"},
	{"recycle", 0, OPT_FLAG, offsetof(struct bench_args, recycle), NULL,
         "overwrite the files of deleted checkpoints"},
	{"keep", 0, OPT_FLAG, offsetof(struct bench_args, keep), NULL, "keep the run and all its checkpoints"},
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl bench /mnt/scratch --size 4GiB", "how long would a training run wait here?"},
	{"pawl bench . --mode direct --recycle", "with no memory to spare"},
	EXAMPLE_END,
};

enum figure { FIRST_BLOCKED, BLOCKED, DURABLE, RESTORE, COPY, WRITE, READ, N_FIGURES };

static const struct {
	const char *name, *text, *word;
	enum figure of; /* the limit it is compared with; itself: none */
} figures[N_FIGURES] = {
	[FIRST_BLOCKED] = {"first_blocked", "training waits, first save", NULL, COPY},
	[BLOCKED] = {"blocked", "training waits", NULL, COPY},
	[DURABLE] = {"durable", "saved and durable", NULL, WRITE},
	[RESTORE] = {"restore", "restored and verified", NULL, READ},
	[COPY] = {"memcpy", "memcpy, 2 threads, warm", "memcpy", COPY},
	[WRITE] = {"direct_write", "direct write, new file", "direct write", WRITE},
	[READ] = {"direct_read", "direct read", "direct read", READ},
};

struct bench {
	struct cli *cli;
	const struct bench_args *args;
	const char *folder, *root;                      /* folder: contains everything that the benchmark creates */
	uint64_t n_tensors, tensor_bytes, nbytes, word; /* nbytes: size of the state */
	char *memory;
	struct pawl_state *state;
	struct pawl *run;
	struct limits limits;
	struct pawl_meter meter;
	double *seconds[N_FIGURES];
	size_t n[N_FIGURES];
};

static void
bench_clear(struct bench *b)
{
	cli_close(&b->run);
	limits_close(&b->limits);
	pawl_state_free(b->state);
	if (b->memory != NULL)
		(void)munmap(b->memory, b->nbytes);
	if (b->folder != NULL && !b->args->keep)
		copy_remove(b->folder);
}

static void
record_seconds(struct bench *b, enum figure figure, double seconds)
{
	b->seconds[figure][b->n[figure]++] = seconds;
}

/* Counts a step of nbytes as done; PAWL_ECANCELLED after a signal. */
static int
step_done(struct bench *b, uint64_t nbytes, struct pawl_error *err)
{
	(void)__atomic_add_fetch(&b->meter.done_bytes, nbytes, __ATOMIC_RELAXED);
	if (__atomic_load_n(&b->meter.cancel, __ATOMIC_RELAXED))
		return err_set(err, PAWL_ECANCELLED, "cancelled");
	return 0;
}

static int
make_state(struct bench *b, struct pawl_error *err)
{
	uint64_t words, seed = 0x9e3779b97f4a7c15u, shape[1];
	void *memory;

	b->n_tensors = b->args->tensors > 0 ? b->args->tensors : BENCH_TENSORS;
	b->nbytes = b->args->size > 0 ? b->args->size : BENCH_SIZE;
	if (b->n_tensors > 1000000)
		return err_set(err, PAWL_EUSAGE, "--tensors: expected at most 1000000, found %" PRIu64, b->n_tensors);
	b->tensor_bytes = b->nbytes / b->n_tensors / 8 * 8;
	if (b->tensor_bytes == 0)
		return err_set(err, PAWL_EUSAGE, "--size: expected at least 8 bytes for each of %" PRIu64 " tensors",
		               b->n_tensors);
	b->nbytes = b->tensor_bytes * b->n_tensors;
	memory = mmap(NULL, b->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return err_set(err, PAWL_ENOMEM, "cannot allocate %s of memory",
		               human_bytes(&b->cli->keep, (double)b->nbytes));
	b->memory = memory;
	words = b->nbytes / 8;
	for (uint64_t i = 0; i < words; i++) {
		if (i % (1u << 20) == 0)
			TRY(step_done(b, 0, err));
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		((uint64_t *)memory)[i] = seed & 0xbfffffffbfffffffu; /* neither NaN nor Inf */
	}
	TRY(pawl_state_new(&b->state, err));
	shape[0] = b->tensor_bytes / 4;
	for (uint64_t i = 0; i < b->n_tensors; i++) {
		struct pawl_tensor tensor = PAWL_TENSOR_INIT;

		tensor.dtype = PAWL_F32;
		tensor.ndim = 1;
		tensor.shape = shape;
		tensor.data = b->memory + i * b->tensor_bytes;
		TRY(pawl_state_set_tensor(b->state, keep_printf(&b->cli->keep, "model/tensor%04" PRIu64, i), &tensor,
		                          err));
	}
	return pawl_state_set_str(b->state, "about", "made by pawl bench", err);
}

static int
open_run(struct bench *b, struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	const char *mode = b->args->mode != NULL ? b->args->mode : "snapshot";

	opts.root = b->root;
	opts.staging.mode = strcmp(mode, "ring") == 0     ? PAWL_MODE_RING
	                    : strcmp(mode, "direct") == 0 ? PAWL_MODE_DIRECT
	                                                  : PAWL_MODE_SNAPSHOT;
	opts.retention.keep_last = b->args->keep ? 0 : 1;
	opts.packs.recycle = b->args->recycle ? 2 : 0;
	return pawl_open(&opts, &b->run, err);
}

/* Writes a new value to every tensor, so that each pack differs from the previous one. */
static void
change_state(struct bench *b)
{
	b->word++;
	for (uint64_t i = 0; i < b->n_tensors; i++)
		memcpy(b->memory + i * b->tensor_bytes, &b->word, sizeof(b->word));
}

PAWL_DEFINE_CLEAN(struct pawl_ticket, pawl_ticket_free);

static int
save_once(struct bench *b, bool first, struct pawl_error *err)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	PAWL_CLEAN(pawl_ticket_free_clean) struct pawl_ticket *ticket = NULL;
	double began;

	change_state(b);
	opts.step = (int64_t)b->word;
	began = info_now();
	TRY(pawl_save(b->run, &opts, b->state, &ticket, err));
	TRY(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	record_seconds(b, first ? FIRST_BLOCKED : BLOCKED, stats.blocked_seconds);
	if (!first)
		record_seconds(b, DURABLE, info_now() - began);
	return step_done(b, b->nbytes, err);
}

/* Removes the newest checkpoint's files from the page cache. */
static void
drop_cache(struct bench *b)
{
	const char *folder = keep_printf(&b->cli->keep, "%s/latest", b->root);
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	(void)folder_list(AT_FDCWD, folder, folder, &names, NULL);
	for (size_t i = 0; i < names.n; i++) {
		const char *path = keep_printf(&b->cli->keep, "%s/%s", folder, names.items[i]);
		PAWL_FD int fd = names.items[i][0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);

		if (fd >= 0)
			os_drop_cache(fd);
	}
}

static int
restore_once(struct bench *b, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	double began;

	drop_cache(b);
	for (uint64_t i = 0; i < b->n_tensors; i++)
		memset(b->memory + i * b->tensor_bytes, 0xff, sizeof(b->word));
	opts.no_fallback = 1;
	opts.non_strict = 1; /* the state has a value without a tensor */
	began = info_now();
	TRY(pawl_restore(b->run, &opts, b->state, NULL, err));
	record_seconds(b, RESTORE, info_now() - began);
	for (uint64_t i = 0; i < b->n_tensors; i++)
		if (memcmp(b->memory + i * b->tensor_bytes, &b->word, sizeof(b->word)) != 0)
			return err_set(err, PAWL_EINTERNAL,
			               "tensor %" PRIu64 ": the restored bytes differ from the "
			               "saved ones",
			               i);
	return step_done(b, b->nbytes, err);
}

static int
measure_limits(struct bench *b, struct pawl_error *err)
{
	double seconds;

	record_seconds(b, COPY, limits_copy(&b->limits));
	TRY(limits_write(&b->limits, &seconds, err));
	record_seconds(b, WRITE, seconds);
	TRY(step_done(b, b->limits.nbytes, err));
	TRY(limits_read(&b->limits, &seconds, err));
	record_seconds(b, READ, seconds);
	return step_done(b, b->limits.nbytes, err);
}

static int
run_rounds(struct bench *b, uint64_t rounds, struct pawl_error *err)
{
	for (size_t f = 0; f < N_FIGURES; f++)
		b->seconds[f] = keep_alloc(&b->cli->keep, rounds + 1, sizeof(double));
	TRY(step_done(b, 0, err));
	TRY(save_once(b, true, err));
	for (uint64_t i = 0; i < rounds; i++) {
		TRY(save_once(b, false, err));
		TRY(restore_once(b, err));
		TRY(measure_limits(b, err));
	}
	return 0;
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double
median_of(const struct bench *b, enum figure figure)
{
	size_t n = b->n[figure];
	double *sorted = keep_alloc(&b->cli->keep, n, sizeof(*sorted));

	memcpy(sorted, b->seconds[figure], n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_doubles);
	return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static double
best_of(const struct bench *b, enum figure figure)
{
	double ret = b->seconds[figure][0];

	for (size_t i = 1; i < b->n[figure]; i++)
		ret = b->seconds[figure][i] < ret ? b->seconds[figure][i] : ret;
	return ret;
}

static double
rate_of(const struct bench *b, enum figure figure)
{
	return (double)(figure >= COPY ? b->limits.nbytes : b->nbytes) / median_of(b, figure);
}

static void
print_table(struct bench *b)
{
	static const struct column columns[] = {
		{"", false, RIGID, 0},    {"median", true, RIGID, 0}, {"best", true, RIGID, 1},
		{"rate", true, RIGID, 0}, {"", false, RIGID, 2},
	};
	struct keep *keep = &b->cli->keep;
	struct grid *grid = grid_new(keep, columns, 5);

	for (enum figure f = 0; f < N_FIGURES; f++) {
		enum figure of = figures[f].of;
		struct cell *cells = grid_row(grid);

		cells[0] = (struct cell){figures[f].text, f >= COPY ? STYLE_DIM : STYLE_BOLD, NULL};
		cells[1].text = human_seconds(keep, median_of(b, f));
		cells[2] = (struct cell){human_seconds(keep, best_of(b, f)), STYLE_DIM, NULL};
		cells[3].text = human_rate(keep, rate_of(b, f));
		if (of != f)
			cells[4] = (struct cell){
				keep_printf(keep, "%.2f of %s", rate_of(b, f) / rate_of(b, of), figures[of].word),
				STYLE_DIM, NULL};
	}
	grid_print(grid, &b->cli->out);
	if (!b->limits.direct)
		cli_note(b->cli, "direct I/O does not work here; the page cache was used");
	if (b->args->keep)
		cli_note(b->cli, "kept: %s", b->root);
}

static void
print_json(struct bench *b)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	b->cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "bench");
	jsonout_text(&j, "run", b->args->keep ? b->root : NULL);
	jsonout_text(&j, "mode", b->args->mode != NULL ? b->args->mode : "snapshot");
	jsonout_uint(&j, "bytes", b->nbytes);
	jsonout_uint(&j, "tensors", b->n_tensors);
	jsonout_uint(&j, "limit_bytes", b->limits.nbytes);
	jsonout_bool(&j, "direct_io", b->limits.direct);
	jsonout_begin_object(&j, "figures");
	for (enum figure f = 0; f < N_FIGURES; f++) {
		jsonout_begin_object(&j, figures[f].name);
		jsonout_real(&j, "median_seconds", median_of(b, f));
		jsonout_real(&j, "best_seconds", best_of(b, f));
		jsonout_real(&j, "bytes_per_second", rate_of(b, f));
		jsonout_begin_flat_array(&j, "seconds");
		for (size_t i = 0; i < b->n[f]; i++)
			jsonout_real(&j, NULL, b->seconds[f][i]);
		jsonout_end(&j);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static int
prepare_bench(struct bench *b, const char *folder, struct pawl_error *err)
{
	char *path = keep_printf(&b->cli->keep, "%s/pawl-bench-XXXXXX", folder);
	uint64_t limit;

	if (mkdtemp(path) == NULL)
		return errno == ENOENT && text_begins_as_url(folder)
		               ? err_set(err, PAWL_EUSAGE, "%s: expected a folder of this machine, found a URL", folder)
		               : err_path(err, errno, folder, true, "cannot make a folder");
	b->folder = path;
	b->root = keep_printf(&b->cli->keep, "%s/run", path);
	TRY(make_state(b, err));
	limit = b->nbytes < BENCH_LIMIT_BYTES ? b->nbytes : BENCH_LIMIT_BYTES;
	TRY(limits_open(&b->limits, keep_printf(&b->cli->keep, "%s/limit", path), limit, err));
	return open_run(b, err);
}

static int
run_bench(struct cli *cli, const void *ptr)
{
	const struct bench_args *args = ptr;
	PAWL_CLEAN(bench_clear) struct bench b = {.cli = cli, .args = args};
	uint64_t rounds = args->rounds > 0 ? args->rounds : BENCH_ROUNDS;
	struct pawl_error err = {0};
	int rc;

	if (rounds > 100000)
		return cli_usage(cli, "--repeat: expected at most 100000, found %" PRIu64, rounds);
	work_begin(cli->work, "measuring", &b.meter, 0);
	rc = prepare_bench(&b, cli->n_operands > 0 ? cli->operands[0] : ".", &err);
	if (rc == 0) {
		cli_note(cli, "%s in %s, %s, in %s", human_bytes(&cli->keep, (double)b.nbytes),
		         human_count(&cli->keep, b.n_tensors, "tensor", "tensors"),
		         human_count(&cli->keep, rounds, "round", "rounds"), b.folder);
		work_begin(cli->work, "measuring", &b.meter, b.nbytes + rounds * 2 * (b.nbytes + b.limits.nbytes));
		rc = run_rounds(&b, rounds, &err);
	}
	work_end(cli->work);
	if (rc < 0)
		return cli_fail(cli, &err);
	if (cli->common.json)
		print_json(&b);
	else
		print_table(&b);
	return 0;
}

const struct command cmd_bench = {
	.name = "bench",
	.group = GROUP_MEND,
	.summary = "measure saves and restores in a folder",
	.about = "Saves and restores a made-up state in FOLDER (default: the current one) several times. It prints "
		 "how long a training run would wait, how long until the checkpoint is durable, and how long a restore "
		 "takes. The same rounds measure the machine: a copy in warm memory with two threads, a "
		 "direct write of a new file and a direct read. Figures are medians.\n\n"
		 "It needs about twice SIZE of memory and three times SIZE of disk. It leaves nothing behind unless "
		 "--keep is given.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct bench_args),
	.run = run_bench,
};
