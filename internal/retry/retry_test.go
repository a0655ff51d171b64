// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhile: a passing error is waited for, for a bounded time. Other errors are returned
// at once.
func TestWhile(t *testing.T) { synctest.Test(t, testWhile) }

func testWhile(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails error
		times int // how often f fails
		calls int // how often f must be called, 0 if that depends on the time
		want  error
	}{
		{"in order", nil, 0, 1, nil},
		{"two failures", fmt.Errorf("send: %w", os.NewSyscallError("sendmsg", syscall.ENOBUFS)), 2, 3, nil},
		{"no memory", &net.OpError{Op: "write", Err: syscall.ENOMEM}, 1, 2, nil},
		{"another error", syscall.EPIPE, 5, 1, syscall.EPIPE},
		{"an end of file", io.EOF, 5, 1, io.EOF},
		{"without end", syscall.ENOMEM, 1 << 30, 0, syscall.ENOMEM},
	} {
		calls := 0
		begin := time.Now()
		err := While(NoMemory, 20*time.Millisecond, func() error {
			if calls++; calls <= tt.times {
				return tt.fails
			}
			return nil
		})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.calls > 0 && calls != tt.calls || tt.calls == 0 && calls < 2 {
			t.Errorf("%s: %d calls", tt.name, calls)
		}
		if tt.calls == 0 && time.Since(begin) < 20*time.Millisecond {
			t.Errorf("%s: gave up after %v", tt.name, time.Since(begin))
		}
	}
}

// TestAllocations: a call that succeeds at once costs no memory.
func TestAllocations(t *testing.T) {
	n := 0
	if a := testing.AllocsPerRun(100, func() {
		_ = While(NoMemory, time.Second, func() error { n++; return nil })
	}); a > 0 {
		t.Errorf("%v allocations", a)
	}
}
