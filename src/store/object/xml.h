/* SPDX-License-Identifier: Apache-2.0 */
/* xml: bounded reading of the XML that object stores answer with, by expat. Pure; safe on hostile bytes (P17). */
#ifndef PAWL_STORE_XML_H
#define PAWL_STORE_XML_H

#include <stddef.h>

#include "base/buf.h"
#include "pawl.h"

enum { XML_MAX_BYTES = 8 << 20, XML_MAX_DEPTH = 16 };

/* Called at the end of each element: path is that of the element ("ListBucketResult/Contents/Key", without name space
 * prefixes), text what stood in it after its last child, unescaped. A negative code ends the reading with that code. */
typedef int xml_fn(void *arg, const char *path, const char *text, size_t len);

/* Reads exactly one document in UTF-8. Comments and the XML declaration are skipped; entities are the five of XML and
 * character references; DTDs, CDATA and other instructions are refused. PAWL_ECORRUPT or PAWL_ELIMIT, naming `what` and the byte. */
int xml_read(const char *what, const void *ptr, size_t len, xml_fn *fn, void *arg, struct pawl_error *err);

/* The text of the first element with exactly this path into *out; PAWL_ENOTFOUND if there is none. */
int xml_get(const char *what, const void *ptr, size_t len, const char *path, struct buf *out, struct pawl_error *err);
/* Appends text with the five entities. */
void xml_escape(struct buf *out, const char *text);

#endif
