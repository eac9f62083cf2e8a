/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of device_queue with the names and the calls of HIP. */
#define DEVICE_KIND DRIVER_HIP
#define FAKE_HIP
#include "test_device_queue.c"
