/* SPDX-License-Identifier: Apache-2.0 */
/* device_measure: how fast a device copies, for diagnosis. */
#ifndef PAWL_DEVICE_DEVICE_MEASURE_H
#define PAWL_DEVICE_DEVICE_MEASURE_H

#include "device/device.h"

#define DEVICE_MEASURE_BYTES ((size_t)64 << 20) /* on the device and in host memory */

struct device_rates {
	bool is_registered;        /* the driver has registered the host memory */
	bool is_gone_around;       /* system calls cannot use that memory: see fd_pwrite */
	double to_host, from_host; /* bytes per second */
};
/* PAWL_ENOTFOUND: there is no such device. */
int device_measure(struct device *d, int ordinal, struct device_rates *ret, struct pawl_error *err);

#endif
