/* SPDX-License-Identifier: Apache-2.0 */
/* The types of no machine in particular: Debian has those of the machine where the compiler does not look. */
#include <asm-generic/types.h>
