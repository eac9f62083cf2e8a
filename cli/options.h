/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options: the description of a command, and the parser that uses it. help.c, cmd_man.c and
 * cmd_completion.c read the same tables.
 *
 * Long options are "--name", "--name value" or "--name=value", spelled in full. Letters may be
 * joined ("-qn"), and their value may follow directly or after a blank ("-Cdir", "-C dir"). "--"
 * ends the options. Options and operands may be mixed.
 */
#ifndef PAWL_CLI_OPTIONS_H
#define PAWL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keep.h"

struct cli;

/* Options that every command takes. */
struct common {
	bool json, quiet, verbose, no_progress, no_pager, help, version;
	const char *color; /* NULL = auto */
	const char *chdir, *node_folder;
};

struct texts {
	const char **items;
	size_t n;
};

enum option_kind {
	OPT_END = 0,
	OPT_FLAG,   /* bool */
	OPT_TEXT,   /* const char *; if `value` lists choices ("max|min"), one of them */
	OPT_TEXTS,  /* struct texts, may be given several times; choices as above */
	OPT_COUNT,  /* uint64_t from 1 */
	OPT_BYTES,  /* uint64_t from 1: 500MB (1000s), 2GiB or 2G (1024s) */
	OPT_RATE,   /* the same per second: 20MB/s or 20MB */
	OPT_SECONDS /* double above 0: 90s, 30min, 12h, 7d, 2w */
};

struct option {
	const char *name; /* without dashes */
	char letter;      /* 0 = none */
	enum option_kind kind;
	size_t at;         /* offset of the value in the command's args struct */
	const char *value; /* placeholder or choices; NULL for flags */
	const char *help;  /* one line, lower case */
};
#define OPTION_END {NULL, 0, OPT_END, 0, NULL, NULL}

enum operand_kind { /* what completion offers */
	            OPERAND_END = 0,
	            OPERAND_TARGET, /* a run folder, a checkpoint folder or RUN@SELECTOR */
	            OPERAND_RUN,
	            OPERAND_FOLDER,
	            OPERAND_PATH,
	            OPERAND_COMMAND,
	            OPERAND_SHELL
};

struct operand {
	const char *name; /* placeholder */
	enum operand_kind kind;
	size_t min, max; /* only the last operand of a command may have max > 1 or min != max */
};
#define OPERAND_LIST_END {NULL, OPERAND_END, 0, 0}
#define OPERAND_ANY SIZE_MAX

struct example {
	const char *line, *help;
};
#define EXAMPLE_END {NULL, NULL}

enum command_group { GROUP_LOOK, GROUP_USE, GROUP_KEEP, GROUP_MEND, GROUP_SEARCH, GROUP_MORE, GROUP_HIDDEN };

struct command {
	const char *name;
	enum command_group group;
	const char *summary; /* one line, lower case, no full stop */
	const char *about;   /* paragraphs, separated by empty lines */
	const struct operand *operands;
	const struct option *options;
	const struct example *examples;
	size_t args_size;                              /* of the struct that the options fill */
	int (*run)(struct cli *cli, const void *args); /* returns the exit status */
};

const struct option *options_common(void);
/* Parses options before the command's name (common ones only), up to the first operand. *at: index
 * of the first argument not consumed. Returns 0, or -1 with *message set. */
int options_parse_common(struct keep *keep, int argc, char **argv, int *at, struct common *common,
                         const char **message);
/* Parses the arguments of a command: fills args and common, and lists the operands, a place
 * "file://PATH" as PATH. Their number is checked unless --help or --version was given. Returns 0,
 * or -1 with *message, which names the wrong argument and the known ones. */
int options_parse(struct keep *keep, const struct command *command, int argc, char **argv, struct common *common,
                  void *args, char ***operands, size_t *n_operands, const char **message);
/* "[options] TARGET DEST": the operands of a command as usage text. */
const char *options_usage(struct keep *keep, const struct command *command);

#endif
