/* SPDX-License-Identifier: Apache-2.0 */
/* The byte order of the target, not that of the machine that compiles. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <linux/byteorder/little_endian.h>
#else
#include <linux/byteorder/big_endian.h>
#endif
