/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_formats: the table of formats. To add one, add its row here (docs/how-to/extending.md).
 *  */
#include "foreign/foreign_formats.h"

const struct foreign_format *const foreign_formats[] = {
	&foreign_safetensors,                                                                   /* files */
	&foreign_npz,         &foreign_npy,          &foreign_pt, &foreign_index, &foreign_dcp, /* folders */
	&foreign_shards,      &foreign_model_folder, NULL,
};
