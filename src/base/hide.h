/* SPDX-License-Identifier: Apache-2.0 */
/* hide: secrets in what others say, before pawl says it again (P18). */
#ifndef PAWL_BASE_HIDE_H
#define PAWL_BASE_HIDE_H

/* Puts stars over values of the environment's secrets, passwords in URLs, and what follows words like "password" on a
 * line. The text stays as long as it is. */
void hide_secrets(char *text);

#endif
