/* SPDX-License-Identifier: Apache-2.0 */
#define __BITS_PER_LONG 64
