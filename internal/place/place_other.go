// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package place

import (
	"context"
	"fmt"
	"net"
	"syscall"
)

// Dial finds no stack: network namespaces are Linux's.
func Dial(context.Context, string) (*net.UnixConn, error) {
	return nil, fmt.Errorf("%w: %w", ErrAbsent, syscall.ENOENT)
}

// Draining finds no stack.
func Draining() []Drain { return nil }

// Ending finds no stack.
func Ending() []string { return nil }
