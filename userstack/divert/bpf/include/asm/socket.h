/* SPDX-License-Identifier: Apache-2.0 */
#include <asm-generic/socket.h>
