/* SPDX-License-Identifier: Apache-2.0 */
/* hide: removes secrets from texts of other programs before pawl prints or stores them (P18). */
#ifndef PAWL_BASE_HIDE_H
#define PAWL_BASE_HIDE_H

/* Replaces by stars: values of secret environment variables, passwords in URLs, and what follows
 * words like "password" on a line. Keeps the length of the text. */
void hide_secrets(char *text);

#endif
