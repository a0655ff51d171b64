// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
)

func TestErrnoOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{fmt.Errorf("x: %w", syscall.EHOSTUNREACH), syscall.EHOSTUNREACH},
		{fmt.Errorf("x: %w", os.ErrDeadlineExceeded), syscall.ETIMEDOUT},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), syscall.ETIMEDOUT},
		{io.ErrUnexpectedEOF, syscall.ECONNRESET},
		{syscall.Errno(0), syscall.ECONNRESET},
	} {
		if got := errnoOf(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestLostErrno: a program hears of a lost connection as of one over TCP, whichever call of the
// service has noticed it.
func TestLostErrno(t *testing.T) {
	for err, want := range map[error]syscall.Errno{
		fmt.Errorf("x: %w", syscall.EPIPE):        syscall.ECONNRESET,
		fmt.Errorf("x: %w", syscall.ENOTCONN):     syscall.ECONNRESET,
		fmt.Errorf("x: %w", syscall.EMFILE):       syscall.ECONNRESET,
		fmt.Errorf("x: %w", syscall.EHOSTUNREACH): syscall.EHOSTUNREACH,
		context.DeadlineExceeded:                  syscall.ETIMEDOUT,
		io.ErrUnexpectedEOF:                       syscall.ECONNRESET,
	} {
		if got := lostErrno(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
