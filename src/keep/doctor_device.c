/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_device: the devices of this machine, and how fast saves copy from them. */
#include "device/device_measure.h"
#include "keep/doctor.h"

#define MAX_DEVICES 8

static void
describe_device(struct pawl_rows *rows, struct device *d, int ordinal, const struct device_rates *rates)
{
	const int node = device_node(d, ordinal);
	char *where = node < 0 ? "" : bump_printf(&rows->memory, ", memory node %d", node);

	doctor_state(rows, bump_printf(&rows->memory, "device %d", ordinal),
	             where ? bump_printf(&rows->memory, "%s memory%s, to host %.1f GB/s, from host %.1f GB/s%s",
	                                 rates->is_registered ? "registered" : "unregistered",
	                                 rates->is_gone_around ? " that system calls cannot use" : "",
	                                 rates->to_host / 1e9, rates->from_host / 1e9, where)
	                   : NULL);
}

static void
describe_driver(struct pawl_rows *rows, struct device *d, int kind)
{
	struct pawl_error why = {0};
	int major, minor;

	doctor_state(rows, "driver",
	             device_version(d, &major, &minor, &why) < 0
	                     ? bump_printf(&rows->memory, "%s", why.message)
	                     : bump_printf(&rows->memory, "%s %d.%d", kind == PAWL_DEVICE_HIP ? "HIP" : "CUDA", major,
	                                   minor));
}

bool
doctor_try_devices(struct pawl_rows *rows, int kind)
{
	struct pawl_error why = {0};
	struct device *d;
	const int rc = device_open((enum driver_kind)kind, true, &d, &why);

	if (rc == PAWL_ENOTFOUND)
		return false;
	if (rc < 0) {
		doctor_state(rows, "devices", bump_printf(&rows->memory, "none: %s", why.message));
		return true;
	}
	describe_driver(rows, d, kind);
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct device_rates rates;
		const int measured = device_measure(d, i, &rates, &why);

		if (measured == PAWL_ENOTFOUND)
			break;
		if (measured < 0)
			doctor_state(rows, "device", bump_printf(&rows->memory, "%s", why.message));
		else
			describe_device(rows, d, i, &rates);
	}
	device_close(d);
	return true;
}
