/* SPDX-License-Identifier: Apache-2.0 */
/* xml: bounded reading of XML answers of object stores, by expat. Pure; safe on hostile bytes
 * (P17). */
#ifndef PAWL_STORE_XML_H
#define PAWL_STORE_XML_H

#include <stddef.h>

#include "base/buf.h"
#include "pawl.h"

enum { XML_MAX_BYTES = 8 << 20, XML_MAX_DEPTH = 16 };

/* Called at the end of each element. path is that of the element, without name space prefixes
 * ("ListBucketResult/Contents/Key"). text is its unescaped content after its last child. A negative
 * result ends the reading with that code. */
typedef int xml_fn(void *arg, const char *path, const char *text, size_t len);

/* Reads exactly one document in UTF-8. Comments and the XML declaration are skipped. The five
 * entities of XML and character references are decoded; DTDs, CDATA and other instructions are
 * refused. PAWL_ECORRUPT or PAWL_ELIMIT, naming `what` and the byte. */
int xml_read(const char *what, const void *ptr, size_t len, xml_fn *fn, void *arg, struct pawl_error *err);

/* Writes the text of the first element with exactly this path to *out. PAWL_ENOTFOUND if there is
 * none. */
int xml_get(const char *what, const void *ptr, size_t len, const char *path, struct buf *out, struct pawl_error *err);
/* Appends text, escaped with the five entities. */
void xml_escape(struct buf *out, const char *text);

#endif
