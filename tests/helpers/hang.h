/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang: the one limit of tests that wait. They wait for events. Only a hang reaches the limit, also
 * on the slowest machine.
 */
#ifndef PAWL_TESTS_HANG_H
#define PAWL_TESTS_HANG_H

#define HANG_SECONDS 900
#define HANG_MS (HANG_SECONDS * 1000)

#endif
