/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_completion: completions for bash, zsh and fish, made from the tables of commands and options.
 * After "RUN@" they offer the names of the run's checkpoints, from `pawl ls --names`.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "help.h"

static const struct operand operands[] = {{"SHELL", OPERAND_SHELL, 1, 1}, OPERAND_LIST_END};

static const struct example examples[] = {
	{"source <(pawl completion bash)", "for this shell; put it into ~/.bashrc for all"},
	{"pawl completion zsh > ~/.zfunc/_pawl", "a folder of fpath"},
	{"pawl completion fish > ~/.config/fish/completions/pawl.fish", "for fish"},
	EXAMPLE_END,
};

static bool
is_choice_list(const struct option *o)
{
	return o->value != NULL && strchr(o->value, '|') != NULL;
}

static const char *
choices_of(struct keep *keep, const struct option *o)
{
	char *ret = keep_printf(keep, "%s", o->value);

	for (char *at = ret; *at != '\0'; at++)
		if (*at == '|')
			*at = ' ';
	return ret;
}

static enum operand_kind
operand_kind(const struct command *c)
{
	return c->operands != NULL ? c->operands[0].kind : OPERAND_END;
}

static const char *
command_names(struct keep *keep)
{
	const char *ret = "";

	for (const struct command *const *c = cli_commands(); *c != NULL; c++)
		if ((*c)->group != GROUP_HIDDEN)
			ret = keep_printf(keep, "%s%s%s", ret, *ret != '\0' ? " " : "", (*c)->name);
	return ret;
}

/* ---- bash */

static void
bash_options(const struct option *o)
{
	for (; o != NULL && o->kind != OPT_END; o++) {
		if (o->letter != 0)
			(void)printf(" -%c", o->letter);
		(void)printf(" --%s", o->name);
	}
}

/* A case for each option that takes a value, so that the value is completed and not mistaken for an
 * operand. */
static void
bash_values(struct keep *keep, const struct option *o)
{
	for (; o != NULL && o->kind != OPT_END; o++) {
		if (o->value == NULL)
			continue;
		if (o->letter != 0)
			(void)printf("\t-%c|", o->letter);
		else
			(void)printf("\t");
		(void)printf("--%s)\n", o->name);
		if (is_choice_list(o))
			(void)printf("\t\tCOMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))\n", choices_of(keep, o));
		else if (strcmp(o->value, "FOLDER") == 0)
			(void)printf("\t\t_pawl_folders \"$cur\"\n");
		(void)printf("\t\treturn ;;\n");
	}
}

/* The case of one command: its own options, then its operands. */
static void
bash_command(struct keep *keep, const struct command *c)
{
	(void)printf("\t%s)\n\tcase $prev in\n", c->name);
	bash_values(keep, c->options);
	(void)printf("\tesac\n\tcase $cur in\n\t-*) COMPREPLY=($(compgen -W \"");
	bash_options(c->options);
	bash_options(options_common());
	(void)printf("\" -- \"$cur\")) ;;\n");
	if (operand_kind(c) == OPERAND_COMMAND)
		(void)printf("\t*) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")) ;;\n", command_names(keep));
	else if (operand_kind(c) == OPERAND_SHELL)
		(void)printf("\t*) COMPREPLY=($(compgen -W \"bash zsh fish\" -- \"$cur\")) ;;\n");
	else if (operand_kind(c) != OPERAND_END)
		(void)printf("\t*) _pawl_folders \"$cur\" ;;\n");
	(void)printf("\tesac ;;\n");
}

/* Names of files come from anywhere: the shell must neither expand nor split them, and what it
 * inserts must be quoted. */
static void
bash_functions(void)
{
	(void)printf("_pawl_folders() {\n"
	             "\tlocal name\n"
	             "\tcompopt -o filenames -o nospace 2>/dev/null\n"
	             "\twhile IFS= read -r name; do\n"
	             "\t\tCOMPREPLY+=(\"$name\")\n"
	             "\tdone < <(compgen -d -- \"$1\")\n"
	             "}\n"
	             "# RUN, the text before the name, the beginning of the name\n"
	             "_pawl_checkpoints() {\n"
	             "\tlocal name\n"
	             "\twhile IFS= read -r name; do\n"
	             "\t\tprintf -v name %%q \"$name\"\n"
	             "\t\t[[ $name == \"$3\"* ]] && COMPREPLY+=(\"$2$name\")\n"
	             "\tdone < <(printf '%%s\\n' latest best good; pawl ls --names -- \"${1:-.}\" 2>/dev/null)\n"
	             "}\n");
}

static void
print_bash(struct keep *keep)
{
	(void)printf("# bash completion of pawl; made by 'pawl completion bash'\n");
	bash_functions();
	(void)printf("_pawl() {\n"
	             "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= run= i\n"
	             "\tCOMPREPLY=()\n"
	             "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	             "\t\tcase ${COMP_WORDS[i]} in\n"
	             "\t\t-C|--chdir|--color|--node-folder) ((i++)) ;;\n"
	             "\t\t-*|=) ;;\n"
	             "\t\t*) command=${COMP_WORDS[i]}; break ;;\n"
	             "\t\tesac\n"
	             "\tdone\n"
	             "\t# bash splits a word at '@' if COMP_WORDBREAKS contains it\n"
	             "\tif [[ $cur == @ || $prev == @ ]]; then\n"
	             "\t\trun=${COMP_WORDS[COMP_CWORD-1]}\n"
	             "\t\t[[ $prev == @ ]] && run=${COMP_WORDS[COMP_CWORD-2]}\n"
	             "\t\t[[ $cur == @ ]] && cur=\n"
	             "\t\t_pawl_checkpoints \"$run\" '' \"$cur\"\n"
	             "\t\treturn\n"
	             "\tfi\n"
	             "\tif [[ $cur == *@* ]]; then\n"
	             "\t\trun=${cur%%@*}\n"
	             "\t\t_pawl_checkpoints \"$run\" \"$run@\" \"${cur##*@}\"\n"
	             "\t\treturn\n"
	             "\tfi\n"
	             "\tcase $prev in\n");
	bash_values(keep, options_common());
	(void)printf("\tesac\n"
	             "\tif [[ -z $command ]]; then\n"
	             "\t\tcase $cur in\n"
	             "\t\t-*) COMPREPLY=($(compgen -W \"");
	bash_options(options_common());
	(void)printf("\" -- \"$cur\")) ;;\n"
	             "\t\t*) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")) ;;\n"
	             "\t\tesac\n\t\treturn\n\tfi\n\tcase $command in\n",
	             command_names(keep));
	for (const struct command *const *c = cli_commands(); *c != NULL; c++)
		if ((*c)->group != GROUP_HIDDEN)
			bash_command(keep, *c);
	(void)printf("\tesac\n}\ncomplete -F _pawl pawl\n");
}

/* ---- zsh */

/* Escapes text for a description in single quotes inside an _arguments specification. */
static const char *
zsh_text(struct keep *keep, const char *text)
{
	char *ret = keep_alloc(keep, strlen(text) * 4 + 1, 1), *to = ret;

	for (; *text != '\0'; text++) {
		if (*text == '\'') {
			memcpy(to, "'\\''", 4);
			to += 4;
			continue;
		}
		if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
			*to++ = '\\';
		*to++ = *text;
	}
	return ret;
}

static void
zsh_options(struct keep *keep, const struct option *o, const char *indent)
{
	for (; o != NULL && o->kind != OPT_END; o++) {
		const char *star = o->kind == OPT_TEXTS ? "*" : "", *value = "", *help = zsh_text(keep, o->help);

		if (is_choice_list(o))
			value = keep_printf(keep, ":value:(%s)", choices_of(keep, o));
		else if (o->value != NULL)
			value = keep_printf(keep, ":%s:%s", zsh_text(keep, o->value),
			                    strcmp(o->value, "FOLDER") == 0 ? "_files -/" : "");
		(void)printf(" \\\n%s'%s--%s%s[%s]%s'", indent, star, o->name, o->value != NULL ? "=" : "", help,
		             value);
		if (o->letter != 0)
			(void)printf(" \\\n%s'%s-%c%s[%s]%s'", indent, star, o->letter, o->value != NULL ? "+" : "",
			             help, value);
	}
}

static void
zsh_operands(struct keep *keep, const struct command *c, const char *indent)
{
	for (const struct operand *o = c->operands; o != NULL && o->kind != OPERAND_END; o++) {
		const char *action = "_pawl_target";

		if (o->kind == OPERAND_COMMAND)
			action = keep_printf(keep, "(%s)", command_names(keep));
		else if (o->kind == OPERAND_SHELL)
			action = "(bash zsh fish)";
		else if (o->kind == OPERAND_FOLDER)
			action = "_files -/";
		else if (o->kind == OPERAND_PATH)
			action = "_files";
		(void)printf(" \\\n%s'%s:%s:%s'", indent, o->max > 1 ? "*" : o->min == 0 ? ":" : "", o->name, action);
	}
}

static void
print_zsh(struct keep *keep)
{
	(void)printf("#compdef pawl\n# zsh completion of pawl; made by 'pawl completion zsh'\n\n"
	             "_pawl_target() {\n"
	             "\tif [[ $PREFIX == *@* ]]; then\n"
	             "\t\tlocal run=${PREFIX%%@*}\n"
	             "\t\tlocal -a names=(latest best good ${(f)\"$(pawl ls --names -- ${run:-.} 2>/dev/null)\"})\n"
	             "\t\tcompadd -P \"$run@\" -- $names\n"
	             "\telse\n"
	             "\t\t_files -/\n"
	             "\tfi\n"
	             "}\n\n"
	             "_pawl() {\n"
	             "\tlocal context state line\n"
	             "\tlocal -A opt_args\n"
	             "\tlocal -a commands=(\n");
	for (const struct command *const *c = cli_commands(); *c != NULL; c++)
		if ((*c)->group != GROUP_HIDDEN)
			(void)printf("\t\t'%s:%s'\n", (*c)->name, zsh_text(keep, (*c)->summary));
	(void)printf("\t)\n\t_arguments -C");
	zsh_options(keep, options_common(), "\t\t");
	(void)printf(" \\\n\t\t'1:command:->command' '*::argument:->arguments'\n"
	             "\tcase $state in\n"
	             "\tcommand) _describe command commands ;;\n"
	             "\targuments)\n\t\tcase $line[1] in\n");
	for (const struct command *const *c = cli_commands(); *c != NULL; c++) {
		if ((*c)->group == GROUP_HIDDEN)
			continue;
		(void)printf("\t\t%s)\n\t\t\t_arguments -s", (*c)->name);
		zsh_options(keep, (*c)->options, "\t\t\t\t");
		zsh_options(keep, options_common(), "\t\t\t\t");
		zsh_operands(keep, *c, "\t\t\t\t");
		(void)printf(" ;;\n");
	}
	(void)printf("\t\tesac ;;\n\tesac\n}\n\n"
	             "if [[ $funcstack[1] == _pawl ]]; then\n\t_pawl \"$@\"\nelse\n\tcompdef _pawl pawl\nfi\n");
}

/* ---- fish */

static const char *
fish_text(struct keep *keep, const char *text)
{
	char *ret = keep_alloc(keep, strlen(text) * 2 + 1, 1), *to = ret;

	for (; *text != '\0'; text++) {
		if (*text == '\'' || *text == '\\')
			*to++ = '\\';
		*to++ = *text;
	}
	return ret;
}

static void
fish_options(struct keep *keep, const struct option *o, const char *condition)
{
	for (; o != NULL && o->kind != OPT_END; o++) {
		(void)printf("complete -c pawl%s -l %s", condition, o->name);
		if (o->letter != 0)
			(void)printf(" -s %c", o->letter);
		if (is_choice_list(o))
			(void)printf(" -x -a '%s'", choices_of(keep, o));
		else if (o->value != NULL)
			(void)printf(strcmp(o->value, "FOLDER") == 0 ? " -r -a '(__fish_complete_directories)'"
			                                             : " -x");
		(void)printf(" -d '%s'\n", fish_text(keep, o->help));
	}
}

static void
print_fish(struct keep *keep)
{
	(void)printf("# fish completion of pawl; made by 'pawl completion fish'\n"
	             "function __pawl_targets\n"
	             "\tset -l word (commandline -ct)\n"
	             "\tif string match -q '*@*' -- $word\n"
	             "\t\tset -l run (string replace -r '@[^@]*$' '' -- $word)\n"
	             "\t\tset -l folder $run\n"
	             "\t\ttest -n \"$folder\"; or set folder .\n"
	             "\t\tfor name in latest best good (pawl ls --names -- $folder 2>/dev/null)\n"
	             "\t\t\techo $run@$name\n"
	             "\t\tend\n"
	             "\telse\n"
	             "\t\t__fish_complete_directories $word\n"
	             "\tend\n"
	             "end\n"
	             "complete -c pawl -f\n");
	fish_options(keep, options_common(), "");
	for (const struct command *const *c = cli_commands(); *c != NULL; c++) {
		const char *seen;

		if ((*c)->group == GROUP_HIDDEN)
			continue;
		seen = keep_printf(keep, " -n '__fish_seen_subcommand_from %s'", (*c)->name);
		(void)printf("complete -c pawl -n __fish_use_subcommand -a %s -d '%s'\n", (*c)->name,
		             fish_text(keep, (*c)->summary));
		fish_options(keep, (*c)->options, seen);
		if (operand_kind(*c) == OPERAND_COMMAND)
			(void)printf("complete -c pawl%s -a '%s'\n", seen, command_names(keep));
		else if (operand_kind(*c) == OPERAND_SHELL)
			(void)printf("complete -c pawl%s -a 'bash zsh fish'\n", seen);
		else if (operand_kind(*c) == OPERAND_FOLDER)
			(void)printf("complete -c pawl%s -a '(__fish_complete_directories)'\n", seen);
		else if (operand_kind(*c) != OPERAND_END)
			(void)printf("complete -c pawl%s -a '(__pawl_targets)'%s\n", seen,
			             (*c)->operands[1].kind == OPERAND_PATH ? " -F" : "");
	}
}

static int
run_completion(struct cli *cli, const void *args)
{
	const char *shell = cli->operands[0];

	(void)args;
	if (strcmp(shell, "bash") == 0)
		print_bash(&cli->keep);
	else if (strcmp(shell, "zsh") == 0)
		print_zsh(&cli->keep);
	else if (strcmp(shell, "fish") == 0)
		print_fish(&cli->keep);
	else
		return cli_usage(cli, "unknown shell '%s' (known: bash, zsh, fish)", shell);
	return 0;
}

const struct command cmd_completion = {
	.name = "completion",
	.group = GROUP_MORE,
	.summary = "print completions for bash, zsh or fish",
	.about = "Prints what SHELL (bash, zsh, fish) needs to complete commands, options and checkpoints.",
	.operands = operands,
	.examples = examples,
	.run = run_completion,
};
